"""One side of a comparison, seen from the benchmark: a library in a worker process of its own.

A worker runs only while it is asked. One that dies or exceeds its time is ended and started afresh
for the next cell.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from turns import turn

WORKER = Path(__file__).with_name("worker.py")
START_SECONDS = 120.0
# glibc gives large blocks back to the system at once; so every fresh output costs page faults.
KEPT_HEAP = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(8 << 30)}
# Settings of the machine's owner that change which kernels OpenBLAS takes.
UNSET = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")


class SideError(Exception):
    """The side has no time for this cell; the message says why."""


class Side:
    """A library, with a strategy if it is cyconv, on a number of threads."""

    def __init__(self, library: str, threads: int, strategy: str = "", keep_heap: bool = False):
        self.library = library
        self.strategy = strategy
        self.threads = threads
        self.keep_heap = keep_heap
        self.version = ""
        self.absent = ""
        self._process: subprocess.Popen | None = None

    def _environment(self) -> dict[str, str]:
        environment = {key: value for key, value in os.environ.items() if key not in UNSET}
        environment["OMP_NUM_THREADS"] = str(self.threads)
        if self.keep_heap:
            environment |= KEPT_HEAP
        return environment

    def start(self) -> bool:
        """Start the worker unless it runs; False if the library is absent."""
        if self.absent or self._process is not None:
            return not self.absent
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed by stop)
        self._process = subprocess.Popen(
            [sys.executable, str(WORKER), self.library, str(self.threads), self.strategy],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=self._environment(),
        )
        self._answers: queue.Queue[bytes] = queue.Queue()
        # A thread reads, because a pipe cannot be waited for with a time limit on every system.
        threading.Thread(
            target=self._read, args=(self._process.stdout, self._answers), daemon=True
        ).start()
        with turn(self._process):
            hello = self._answer(START_SECONDS)
        self.absent = hello.get("absent", "")
        self.version = hello.get("version", "")
        return not self.absent

    @staticmethod
    def _read(pipe, answers: queue.Queue[bytes]) -> None:
        for line in pipe:
            answers.put(line)
        answers.put(b"")
        pipe.close()

    def _answer(self, seconds: float) -> dict:
        try:
            line = self._answers.get(timeout=max(seconds, 0.01))
        except queue.Empty:
            self.stop()
            raise SideError("too slow: no answer in the time of a cell") from None
        if not line:
            code = self._process.wait()
            self._errors.seek(0)
            last = self._errors.read().decode(errors="replace").strip().splitlines()[-1:]
            self.stop()
            raise SideError(f"died: exit code {code} {''.join(last)}".rstrip())
        return json.loads(line)

    def ask(self, within: float, **request: object) -> dict:
        """Send a request and wait for its answer.

        Raises
        ------
        SideError
            Absent, unsupported, failed, dead, or no answer within so many seconds.
        """
        if not self.start():
            raise SideError(f"absent: {self.absent}")
        with turn(self._process):
            try:
                self._process.stdin.write(json.dumps(request).encode() + b"\n")
                self._process.stdin.flush()
            except BrokenPipeError:
                pass  # the answer, or rather its absence, tells
            answer = self._answer(within)
        for failure in ("unsupported", "error"):
            if failure in answer:
                raise SideError(f"{failure}: {answer[failure]}")
        return answer

    def stop(self) -> None:
        """End the worker."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process.stdin.close()
            self._errors.close()
            self._process = None
