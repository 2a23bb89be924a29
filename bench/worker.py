"""A process that owns one library: ``python worker.py LIBRARY THREADS STRATEGY``.

It reads one JSON request a line from stdin and answers each with one JSON line on stdout:

- at the start, unasked: ``{"version": ...}``, or ``{"absent": reason}`` and the end;
- ``{"do": "prepare", "problem": {...}}``: draw the operands, call, and answer with the time of a
  call, values sampled from its result and what the library tells of its choice;
- ``{"do": "time", "seconds": s}``: call for s seconds, at least once; the fastest call's time.

A failure is answered as ``{"error": ...}`` or ``{"unsupported": ...}``; the process lives on.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable

from libraries import LIBRARIES, UnsupportedError, draw_operands

SLOW = 0.5


def fastest(call: Callable[[], object], seconds: float) -> tuple[float, int]:
    """Time as many calls as fit into `seconds`; the least time, and how many they were."""
    clock = time.perf_counter
    best, calls, end = math.inf, 0, clock() + seconds
    while True:
        start = clock()
        call()
        stop = clock()
        best = min(best, stop - start)
        calls += 1
        if stop >= end:
            return best, calls


def prepare(library, problem: dict) -> tuple[Callable[[], object], dict]:
    """Make the call that will be timed, and the answer about it."""
    call, told = library.prepare(problem, draw_operands(problem))
    start = time.perf_counter()
    result = call()
    seconds = time.perf_counter() - start
    told["sample"] = library.sample(problem, result)
    if seconds < SLOW:  # the first call may hold what is done once: code, plans, packed weights
        seconds, _ = fastest(call, 0.0)
    told["call_seconds"] = seconds
    return call, told


def serve(library, requests, answer: Callable[[dict], None]) -> None:
    """Answer requests until there are no more."""
    call = None
    for line in requests:
        request = json.loads(line)
        try:
            if request["do"] == "prepare":
                call = None  # frees the operands of the previous problem
                call, told = prepare(library, request["problem"])
                answer(told)
            else:
                best, calls = fastest(call, request["seconds"])
                answer({"seconds": best, "calls": calls})
        except UnsupportedError as error:
            answer({"unsupported": str(error)})
        except Exception as error:
            answer({"error": f"{type(error).__name__}: {error}"})


def main() -> None:
    """Load the library and serve."""
    name, threads, strategy = sys.argv[1:]
    # Whatever a library prints goes to stderr; the answers have the pipe for themselves.
    pipe = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(message: dict) -> None:
        pipe.write(json.dumps(message) + "\n")
        pipe.flush()

    try:
        library = LIBRARIES[name](int(threads), strategy)
    except ImportError as error:
        answer({"absent": str(error)})
        return
    answer({"version": library.version})
    serve(library, sys.stdin, answer)


if __name__ == "__main__":
    main()
