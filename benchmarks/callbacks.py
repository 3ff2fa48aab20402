"""Compares callbacks and `asyncio.gather` on handles with the same on plain futures.

    python -m benchmarks.callbacks
    python -m benchmarks.callbacks --codec zstd

The producer sends to a broker in the same process. The output is the CPU time per record (minimum
of several runs), and the costs of a done callback, `on_delivery`, `gather` and `wait` relative to
those of plain futures, which are also created and completed.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from benchmarks.loopback_broker import TOPIC, NearbyBroker
from benchmarks.targets import Verdict

if TYPE_CHECKING:
    from aiokprod import Producer

VALUE: Final = b"v" * 100
GROUP: Final = 6_000
"""Number of records that are pending at the same time."""
RECORDS: Final = 60_000
RUNS: Final = 5

Case = Callable[["Producer[bytes, bytes]"], Awaitable[object]]


def _ignore(*outcome: object) -> None:
    """Do nothing, as a callback."""


async def plain(producer: Producer[bytes, bytes]) -> None:
    """Submit records without callbacks."""
    for _ in range(GROUP):
        await producer.submit(TOPIC, VALUE)
    await producer.flush()


async def done_callback(producer: Producer[bytes, bytes]) -> None:
    """Submit records and add a done callback to each handle."""
    for _ in range(GROUP):
        (await producer.submit(TOPIC, VALUE)).add_done_callback(_ignore)
    await producer.flush()


async def on_delivery(producer: Producer[bytes, bytes]) -> None:
    """Submit records with `submit(on_delivery=)`."""
    for _ in range(GROUP):
        await producer.submit(TOPIC, VALUE, on_delivery=_ignore)
    await producer.flush()


async def gather(producer: Producer[bytes, bytes]) -> None:
    """Await all handles with `asyncio.gather`."""
    await asyncio.gather(*[await producer.submit(TOPIC, VALUE) for _ in range(GROUP)])


async def wait(producer: Producer[bytes, bytes]) -> None:
    """Await all handles with `asyncio.wait`."""
    handles: list[Any] = [await producer.submit(TOPIC, VALUE) for _ in range(GROUP)]
    await asyncio.wait(handles)


def _futures() -> list[asyncio.Future[None]]:
    loop = asyncio.get_running_loop()
    return [loop.create_future() for _ in range(GROUP)]


async def _complete(futures: list[asyncio.Future[None]]) -> None:
    await asyncio.sleep(0)
    for future in futures:
        future.set_result(None)


async def future_callback(producer: Producer[bytes, bytes]) -> None:
    """Add a done callback to each future."""
    futures = _futures()
    for future in futures:
        future.add_done_callback(_ignore)
    await _complete(futures)
    await asyncio.sleep(0)


async def future_gather(producer: Producer[bytes, bytes]) -> None:
    """Await futures with `asyncio.gather`."""
    futures = _futures()
    gathered = asyncio.gather(*futures)
    await _complete(futures)
    await gathered


async def future_wait(producer: Producer[bytes, bytes]) -> None:
    """Await futures with `asyncio.wait`."""
    futures = _futures()
    waiting = asyncio.ensure_future(asyncio.wait(futures))
    await _complete(futures)
    await waiting


CASES: Final[tuple[Case, ...]] = (
    plain, done_callback, on_delivery, gather, wait, future_callback, future_gather, future_wait,
)  # fmt: skip


async def measure(codec: str, records: int, runs: int) -> dict[str, float]:
    """Return the CPU time per record in µs, by the name of the case."""
    from aiokprod import Producer, ProducerConfig

    best: dict[str, float] = {}
    async with Producer(
        ProducerConfig(bootstrap_servers="nearby:9092", compression_type=codec),
        environment=NearbyBroker().environment(),
    ) as producer:
        await producer.send(TOPIC, VALUE)
        for _ in range(runs):
            for case in CASES:
                start = time.process_time()
                for _ in range(max(1, records // GROUP)):
                    await case(producer)
                took = (time.process_time() - start) / (max(1, records // GROUP) * GROUP)
                name = case.__name__
                best[name] = min(best.get(name, took * 1e6), took * 1e6)
    return best


def ratios(times: Mapping[str, float]) -> dict[str, float]:
    """Return the costs relative to plain futures."""
    return {
        "done callback": (times["done_callback"] - times["plain"]) / times["future_callback"],
        "on_delivery": (times["on_delivery"] - times["plain"]) / times["future_callback"],
        "gather": times["gather"] / times["future_gather"],
        "wait": times["wait"] / times["future_wait"],
    }


LIMITS: Final = {"done callback": 0.3, "on_delivery": 0.2, "gather": 0.9}


def verdicts(codec: str, times: Mapping[str, float]) -> list[Verdict]:
    """Check the limits of the costs relative to plain futures."""
    found = ratios(times)
    return [
        Verdict(f"{name}, {codec}", f"≤ {most:g} of plain futures", f"{found[name]:.2f}",
                found[name] <= most)
        for name, most in LIMITS.items()
    ]  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.callbacks", description=__doc__)
    parser.add_argument("--codec", default="none", help="compression_type; %(default)s")
    parser.add_argument("--records", type=int, default=RECORDS, help="of a run; %(default)s")
    parser.add_argument("--runs", type=int, default=RUNS, help="%(default)s")
    chosen = parser.parse_args()
    times = asyncio.run(measure(chosen.codec, chosen.records, chosen.runs))
    print(f"| {chosen.codec} | µs |\n|---|---:|")
    for name, took in times.items():
        print(f"| {name} | {took:.2f} |")
    print("\n| relative to futures | |\n|---|---:|")
    for name, ratio in ratios(times).items():
        print(f"| {name} | {ratio:.2f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
