"""Learn an unknown filter from its input and output, by gradient descent.

The loss is half the mean squared error; its gradients come from ``conv_weight_backward`` and
``bias_backward``. Run it with ``python examples/fit_filter.py``.
"""

import numpy as np

import cyconv


def main(steps: int = 60, rate: float = 0.2) -> float:
    """Fit a 5x5 filter with a bias; return the largest error of a weight."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((8, 1, 32, 32)).astype(np.float32)
    true_w = rng.standard_normal((1, 1, 5, 5)).astype(np.float32)
    true_b = np.array([0.5], np.float32)
    target = cyconv.conv2d(x, true_w, true_b, padding="same")

    w, b = np.zeros_like(true_w), np.zeros_like(true_b)
    for step in range(steps):
        y = cyconv.conv2d(x, w, b, padding="same")
        dy = (y - target) / y.size
        w -= rate * cyconv.conv_weight_backward(x, dy, w.shape, padding="same")
        b -= rate * cyconv.bias_backward(dy)
        if step % 10 == 0:
            print(f"step {step:3d}  loss {0.5 * np.mean((y - target) ** 2):.2e}")
    error = float(max(np.abs(w - true_w).max(), np.abs(b - true_b).max()))
    print(f"largest error of a weight: {error:.1e}")
    return error


if __name__ == "__main__":
    main()
