"""Memory that the tape keeps for the next step: handed out once, cleared where asked, bounded."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import cyconv
from cyconv import autograd
from cyconv.kernels import _memory

UNIT = 16384


@pytest.fixture(autouse=True)
def _nothing_kept():
    cyconv.clear_cache()
    yield
    cyconv.clear_cache()


def made(make, *arguments):
    with _memory.Recycling():
        return make(*arguments)


def test_memory_is_used_again_when_its_last_view_is_gone():
    first = made(np.ones, 100_000)
    place, view = first.ctypes.data, first[10:]
    del first
    other = made(np.ones, 100_000)
    assert not np.shares_memory(other, view)
    assert (view == 1).all()
    del view
    again = made(np.empty, (1000, 100))
    assert again.ctypes.data == place
    assert again.flags.owndata
    assert place % 16 == 0


def test_zeros_are_zeros():
    dirty = made(np.ones, 100_000)
    place = dirty.ctypes.data
    del dirty
    clean = made(np.zeros, 100_000)
    assert clean.ctypes.data == place
    assert not clean.any()


def test_arrays_elsewhere_are_not_concerned():
    with _memory.Recycling(), _memory.Recycling():
        pass
    array = np.ones(100_000)
    del array
    assert _memory.held_nbytes() == 0


def test_what_is_kept_is_bounded_by_what_was_in_use():
    most = used = 0
    arrays: list[np.ndarray] = []
    rng = np.random.default_rng(0)
    for _ in range(2000):
        if arrays and rng.random() < 0.5:
            used -= arrays.pop(int(rng.integers(len(arrays)))).nbytes
        else:
            # One byte an element and whole units, so that sizes are capacities.
            arrays.append(made(np.empty, UNIT * int(rng.integers(1, 40)), np.uint8))
            used += arrays[-1].nbytes
        most = max(most, used)
        assert used + _memory.held_nbytes() <= most
    assert _memory.held_nbytes() > 0
    arrays.clear()
    cyconv.clear_cache()
    assert _memory.held_nbytes() == 0


def test_an_array_that_grows_takes_its_values_along():
    array = made(np.arange, 5000)
    for size in (5000, 50_000, 100, 500_000):
        array.resize(size, refcheck=False)
        np.testing.assert_array_equal(array[:100], np.arange(100))
        assert not array[5000:].any()


def test_sizes_without_end():
    with pytest.raises(MemoryError):
        made(np.empty, 2**62, np.uint8)
    with pytest.raises(MemoryError):
        made(np.zeros, 2**62, np.uint8)
    array = made(np.ones, 100_000)
    del array
    assert _memory.held_nbytes() > 0  # the failures count as nothing in use


def test_threads_do_not_get_the_same_memory():
    faults = []

    def work(number):
        rng = np.random.default_rng(number)
        arrays = []
        for _ in range(500):
            array = made(np.full, UNIT * int(rng.integers(1, 5)), number, np.uint8)
            arrays.append(array)
            if len(arrays) > 8:
                faults.extend(a for a in arrays if (a != number).any())
                del arrays[: int(rng.integers(1, 8))]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults


def test_a_step_takes_the_memory_of_the_one_before():
    x = np.random.default_rng(0).standard_normal((4, 8, 40, 40))
    w = cyconv.Tensor(np.random.default_rng(1).standard_normal((8, 8, 3, 3)), requires_grad=True)

    def step():
        y = autograd.relu(cyconv.conv2d(x, w, padding=1))
        (y * y).sum().backward()
        return y.numpy().ctypes.data

    for _ in range(3):
        step()
    kept = _memory.held_nbytes()
    assert kept >= 3 * x.nbytes
    assert f"{kept} bytes" in cyconv.show_config()
    for _ in range(5):
        step()
    assert _memory.held_nbytes() == kept


def test_results_outlive_the_memory_that_was_released():
    x = cyconv.Tensor(np.ones((200, 200)), requires_grad=True)
    y = x * 2
    y.sum().backward()
    cyconv.clear_cache()
    np.testing.assert_array_equal(y.numpy(), np.full((200, 200), 2.0))
    np.testing.assert_array_equal(x.grad.numpy(), np.full((200, 200), 2.0))
