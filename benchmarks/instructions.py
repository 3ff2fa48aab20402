"""Instructions for each record, counted by valgrind: a figure that no other program disturbs.

    python -m benchmarks.instructions

Runs the compiled append path under `valgrind --tool=callgrind` with few and with many records; the
difference divided by the number is what one record costs, interpreter included where Python calls.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Final

FEW: Final = 20_000
MANY: Final = 120_000
TIMEOUT: Final = 600.0
_COLLECTED: Final = re.compile(r"Collected : (\d+)")

VALUE: Final = b"v" * 100


def _keys(count: int) -> list[bytes]:
    """As many are made for few records as for many, so that making them does not count."""
    made = [b"customer-%07d" % number for number in range(10_000)]
    return (made * (count // len(made) + 1))[:count]


def column(count: int) -> None:
    """As `send_many` does it."""
    from benchmarks.desk import Desk

    Desk(3).append_column([VALUE] * count)


def keyed_column(count: int) -> None:
    """The same with keys."""
    from benchmarks.desk import Desk

    Desk(3).append_column([VALUE] * count, _keys(count))


def submit(count: int) -> None:
    """`await submit()` in a loop, its interpretation included."""
    from benchmarks.desk import TOPIC, Desk

    call = Desk(3).appender.submit

    async def run() -> None:
        for value in [VALUE] * count:
            await call(TOPIC, value)

    try:
        run().send(None)
    except StopIteration:
        return
    raise AssertionError("submit waited although there was room")


def settled(count: int) -> None:
    """`try_submit`'s append, the batch's acknowledgment, and the result of each handle."""
    from benchmarks.desk import TOPIC, Desk

    desk = Desk(1, keep=True)
    append = desk.appender.try_append
    handles = [append(TOPIC, VALUE) for _ in range(count)]
    for core in desk.kept:
        core.seal()
        core.finish()
        core.settle(0)
    for handle in handles:
        assert handle is not None
        handle.result()


CASES: Final[Mapping[str, Callable[[int], None]]] = {
    "column": column,
    "keyed_column": keyed_column,
    "submit": submit,
    "settled": settled,
}
WORDS: Final = {
    "column": "append of 100 bytes, as `send_many` does it",
    "keyed_column": "the same with a key of 16 bytes and murmur2",
    "submit": "`await submit()`, the calling loop included",
    "settled": "append with a handle, settlement, `handle.result()`",
}


def count(name: str, records: int) -> int:
    """Instructions of a whole process. Raises RuntimeError with valgrind's words."""
    done = subprocess.run(
        ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null",
         sys.executable, "-m", "benchmarks.instructions", "--inside", name, str(records)],
        capture_output=True, text=True, timeout=TIMEOUT, stdin=subprocess.DEVNULL,
        env={**os.environ, "PYTHONHASHSEED": "0"},
    )  # fmt: skip
    found = _COLLECTED.search(done.stderr)
    if done.returncode != 0 or found is None:
        raise RuntimeError(f"valgrind failed:\n{done.stderr[-2000:]}")
    return int(found.group(1))


def per_record(name: str) -> float:
    """Instructions that one more record costs."""
    return (count(name, MANY) - count(name, FEW)) / (MANY - FEW)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.instructions",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--inside", nargs=2, metavar=("CASE", "RECORDS"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.inside:
        name, records = chosen.inside
        CASES[name](int(records))
        return 0
    if shutil.which("valgrind") is None:
        print("error: `valgrind` is not installed", file=sys.stderr)
        return 2
    print("| instructions for each record | |\n|---|---:|")
    for name in chosen.only:
        print(f"| {WORDS[name]} | {per_record(name):,.0f} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
