"""A worker runs only during its turn, and is stopped in between.

Threads of a library that go on spinning after a call would otherwise take a core from the others.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def turn(process: subprocess.Popen) -> Iterator[None]:
    """Let a stopped process go on for as long as this is open.

    Where there are no signals for it, it runs all the time.
    """
    can_stop = os.name == "posix"
    if can_stop:
        process.send_signal(signal.SIGCONT)
    try:
        yield
    finally:
        if can_stop and process.poll() is None:
            process.send_signal(signal.SIGSTOP)
