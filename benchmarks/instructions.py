"""Instructions for each record, counted by valgrind: a figure that no other program disturbs.

    python -m benchmarks.instructions
    python -m benchmarks.instructions --only request batch --calls    # needs no valgrind

Runs the compiled append path, and a whole producer beside a broker in the same process that costs
next to nothing, under `valgrind --tool=callgrind` with few and with many records (requests); the
difference divided by the number is what one costs, interpreter included where Python calls.
`--calls` counts calls of this package's Python functions instead.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from aiokprod import Producer

FEW: Final = 20_000
MANY: Final = 120_000
FEW_REQUESTS: Final = 200
MANY_REQUESTS: Final = 1_200
TIMEOUT: Final = 600.0
_COLLECTED: Final = re.compile(r"Collected : (\d+)")

VALUE: Final = b"v" * 100


def _keys(count: int) -> list[bytes]:
    """As many are made for few records as for many, so that making them does not count."""
    made = [b"customer-%07d" % number for number in range(10_000)]
    return (made * (count // len(made) + 1))[:count]


def column(count: int) -> None:
    """As `send_many` does it."""
    from benchmarks.append_harness import AppendHarness

    AppendHarness(3).append_column([VALUE] * count)


def keyed_column(count: int) -> None:
    """The same with keys."""
    from benchmarks.append_harness import AppendHarness

    AppendHarness(3).append_column([VALUE] * count, _keys(count))


def submit(count: int) -> None:
    """`await submit()` in a loop, its interpretation included."""
    from benchmarks.append_harness import TOPIC, AppendHarness

    call = AppendHarness(3).appender.submit

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
    from benchmarks.append_harness import TOPIC, AppendHarness

    harness = AppendHarness(1, keep=True)
    append = harness.appender.try_append
    handles = [append(TOPIC, VALUE) for _ in range(count)]
    for core in harness.kept:
        core.seal()
        core.finish()
        core.settle(0)
    for handle in handles:
        assert handle is not None
        handle.result()


def request(count: int) -> None:
    """A lone `await send()`, one after the other: open, send, answer, settle."""
    from benchmarks.loopback_broker import TOPIC

    async def run(producer: Producer[bytes, bytes]) -> None:
        for _ in range(count):
            await producer.send(TOPIC, VALUE)

    _with_producer(run)


def crowd(count: int) -> None:
    """So many records of 64 tasks that each await one `send()` after the other."""
    from benchmarks.loopback_broker import TOPIC

    async def run(producer: Producer[bytes, bytes]) -> None:
        left = iter(range(count))

        async def task() -> None:
            for _ in left:
                await producer.send(TOPIC, VALUE)

        await asyncio.gather(*(task() for _ in range(64)))

    _with_producer(run)


def batch(count: int) -> None:
    """`send_many` of so many times 128 KiB; appending and checksums are part of it."""
    from benchmarks.loopback_broker import TOPIC

    async def run(producer: Producer[bytes, bytes]) -> None:
        for first in range(0, count, SHARES_AT_ONCE):
            batches = min(SHARES_AT_ONCE, count - first)
            await producer.send_many(TOPIC, [VALUE] * (batches * RECORDS_OF_128_KIB))

    _with_producer(run)


RECORDS_OF_128_KIB: Final = 1_190
SHARES_AT_ONCE: Final = 40


def _with_producer(run: Callable[[Producer[bytes, bytes]], Awaitable[None]]) -> None:
    from aiokprod import Producer
    from benchmarks.loopback_broker import NearbyBroker

    async def main() -> None:
        environment = NearbyBroker().environment()
        async with Producer(bootstrap_servers="nearby:9092", environment=environment) as producer:
            await run(producer)

    asyncio.run(main())


CASES: Final[Mapping[str, Callable[[int], None]]] = {
    "column": column,
    "keyed_column": keyed_column,
    "submit": submit,
    "settled": settled,
    "request": request,
    "crowd": crowd,
    "batch": batch,
}
OF_REQUESTS: Final = frozenset({"request", "batch"})
WORDS: Final = {
    "column": "append of 100 bytes, as `send_many` does it",
    "keyed_column": "the same with a key of 16 bytes and murmur2",
    "submit": "`await submit()`, the calling loop included",
    "settled": "append with a handle, settlement, `handle.result()`",
    "request": "a request of one record: `await send()`",
    "crowd": "a record of 64 tasks that `await send()`, in requests of 64",
    "batch": "128 KiB of `send_many`, 1 190 records of 100 bytes",
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


def calls(name: str, records: int) -> int:
    """Calls of Python functions of this package, a whole run in this process."""
    import aiokprod

    root = os.path.dirname(aiokprod.__file__)
    found = 0

    def watch(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal found
        found += event == "call" and frame.f_code.co_filename.startswith(root)

    sys.setprofile(watch)
    try:
        CASES[name](records)
    finally:
        sys.setprofile(None)
    return found


def each(name: str, counter: Callable[[str, int], int]) -> float:
    """What one more record, or request, costs."""
    few, many = (FEW_REQUESTS, MANY_REQUESTS) if name in OF_REQUESTS else (FEW, MANY)
    return (counter(name, many) - counter(name, few)) / (many - few)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.instructions",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--calls", action="store_true", help="count Python calls instead")
    parser.add_argument("--inside", nargs=2, metavar=("CASE", "RECORDS"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.inside:
        name, records = chosen.inside
        CASES[name](int(records))
        return 0
    if not chosen.calls and shutil.which("valgrind") is None:
        print("error: `valgrind` is not installed", file=sys.stderr)
        return 2
    counter = calls if chosen.calls else count
    print(f"| {'Python calls' if chosen.calls else 'instructions'} | |\n|---|---:|")
    for name in chosen.only:
        print(f"| {WORDS[name]} | {each(name, counter):,.0f} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
