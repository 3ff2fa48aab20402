"""Measures the CPU time per record with user code: serializers, a partitioner, hooks, timeouts.

    python -m benchmarks.ways
    python -m benchmarks.ways --check

Every way sends the same records of 100 bytes to a broker in the same process that does almost no
work. The ways run alternately, each with a separate producer, and each figure is the minimum of the
rounds. "Limit" is the maximum time of a way in µs. It is usually a multiple of the time of the same
records without user code, plus the time of the user code alone. `--check` exits with 1 if a limit
is exceeded.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from aiokprod import JsonSerializer, Producer, StringSerializer
from aiokprod.partitioners import ConsistentRandomPartitioner, RoundRobinPartitioner
from benchmarks.clients.ours import NothingDone
from benchmarks.loopback_broker import TOPIC, NearbyBroker
from benchmarks.targets import Verdict

VALUE: Final = b"v" * 100
TEXT: Final = VALUE.decode()
DOCUMENT: Final = {"id": 7, "name": "customer-0000007", "items": [1, 2, 3], "price": 9.5}
GROUP: Final = 6_000
"""Number of records in a round."""
TASKS: Final = 64
ROUNDS: Final = 9
TIMEOUT: Final = 5.0

Send = Callable[[Producer[Any, Any]], Awaitable[None]]
Times = Mapping[str, float]


def encode(text: str) -> bytes:
    """Encode a string. A serializer in Python."""
    return text.encode()


def submitting(make: Callable[[], Any]) -> Send:
    """Return a function in which one task submits the results of `make`, then flushes."""

    async def send(producer: Producer[Any, Any]) -> None:
        for _ in range(GROUP):
            await producer.submit(TOPIC, make())
        await producer.flush()

    return send


def same(value: Any) -> Send:
    """Do the same as `submitting` with one object, so that its creation is not measured."""

    async def send(producer: Producer[Any, Any]) -> None:
        for _ in range(GROUP):
            await producer.submit(TOPIC, value)
        await producer.flush()

    return send


def requesting(value: Any, **options: Any) -> Send:
    """Return a function in which 64 tasks await one `send` after the other."""

    async def send(producer: Producer[Any, Any]) -> None:
        left = iter(range(GROUP))

        async def task() -> None:
            for _ in left:
                await producer.send(TOPIC, value, **options)

        await asyncio.gather(*(task() for _ in range(TASKS)))

    return send


@dataclass(frozen=True)
class Way:
    """A way to send records.

    Attributes:
        settings: settings of the producer.
        alone: the user's function that is called for each record, and its arguments. It is also
            measured separately.
        limit: function that returns the maximum time in µs from the times of all ways and of
            `alone`.
    """

    name: str
    send: Send
    settings: Mapping[str, Any] = field(default_factory=dict)
    alone: tuple[Any, ...] | None = None
    limit: Callable[[Times, float], float] | None = None


def _at_most(limit: float) -> Callable[[Times, float], float]:
    return lambda times, alone: limit


def _times(factor: float, other: str) -> Callable[[Times, float], float]:
    """Return a limit: a multiple of the time of another way, plus the time of `alone`."""
    return lambda times, alone: factor * times[other] + alone


def ways() -> list[Way]:
    """Return all ways that can be measured. The ways with orjson need that package."""
    nothing = NothingDone()
    found = [
        Way("bytes", same(VALUE)),
        Way("str, encoded by the caller", submitting(lambda: encode(TEXT))),
        Way("str, Python function", same(TEXT), {"value_serializer": encode},
            (encode, TEXT), _times(1.3, "bytes")),
        Way("str, StringSerializer", same(TEXT), {"value_serializer": StringSerializer()},
            (StringSerializer().serialize, TOPIC, [], TEXT), _times(1.3, "bytes")),
        Way("bytearray", same(bytearray(VALUE)), limit=_times(2, "bytes")),
        Way("memoryview", same(memoryview(VALUE)), limit=_times(2, "bytes")),
        Way("dict, JsonSerializer", same(DOCUMENT), {"value_serializer": JsonSerializer()}),
        Way("callable partitioner", same(VALUE), {"partitioner": lambda *record: 0},
            limit=_at_most(3)),
        Way("RoundRobinPartitioner", same(VALUE), {"partitioner": RoundRobinPartitioner()},
            limit=_at_most(3)),
        Way("ConsistentRandomPartitioner", same(VALUE),
            {"partitioner": ConsistentRandomPartitioner()}, limit=_at_most(3)),
        Way("plug-in that does nothing", same(VALUE), {"plugins": (nothing,)},
            limit=_at_most(1.5)),
        Way("interceptor that does nothing", same(VALUE), {"interceptors": (nothing,)},
            limit=_at_most(2.5)),
        Way("64 tasks", requesting(VALUE)),
        Way("64 tasks, timeout=5", requesting(VALUE, timeout=TIMEOUT),
            limit=_times(1.25, "64 tasks")),
        Way("64 tasks, str, Python function", requesting(TEXT), {"value_serializer": encode},
            limit=_times(1.2, "64 tasks")),
    ]  # fmt: skip
    with contextlib.suppress(ImportError):
        import orjson

        found += [
            Way("dict, orjson.dumps by the caller", submitting(lambda: orjson.dumps(DOCUMENT))),
            Way("dict, orjson.dumps", same(DOCUMENT), {"value_serializer": orjson.dumps},
                limit=_times(1.15, "dict, orjson.dumps by the caller")),
            Way("dict, JsonSerializer of orjson", same(DOCUMENT),
                {"value_serializer": JsonSerializer(backend="orjson")}),
        ]  # fmt: skip
    return found


async def measure(chosen: list[Way], rounds: int) -> dict[str, float]:
    """Return the CPU time per record in µs, by the name of the way."""
    best: dict[str, float] = {}
    async with contextlib.AsyncExitStack() as stack:
        producers = []
        for way in chosen:
            producer: Producer[Any, Any] = Producer(
                bootstrap_servers="nearby:9092",
                environment=NearbyBroker().environment(),
                **way.settings,
            )
            producers.append(await stack.enter_async_context(producer))
            await way.send(producer)
        for _ in range(rounds):
            for way, producer in zip(chosen, producers, strict=True):
                gc.collect()
                started = time.process_time()
                await way.send(producer)
                used = (time.process_time() - started) / GROUP * 1e6
                best[way.name] = min(best.get(way.name, used), used)
    return best


def alone(way: Way, rounds: int) -> float:
    """Return the time of the user's function without a producer, µs, or 0 if there is none."""
    if way.alone is None:
        return 0.0
    call, *arguments = way.alone
    found = []
    for _ in range(rounds):
        started = time.process_time()
        for _ in range(GROUP):
            call(*arguments)
        found.append((time.process_time() - started) / GROUP * 1e6)
    return min(found)


def verdicts(found: list[Way], times: Times, rounds: int) -> list[Verdict]:
    """Check the ways that have a limit."""
    made = []
    for way in found:
        if way.limit is not None:
            most, took = way.limit(times, alone(way, rounds)), times[way.name]
            made.append(Verdict(way.name, f"≤ {most:.2f} µs", f"{took:.2f} µs", took <= most))
    return made


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.ways",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="%(default)s")
    parser.add_argument("--check", action="store_true", help="exit 1 if a limit is exceeded")
    chosen = parser.parse_args()
    found = ways()
    times = asyncio.run(measure(found, chosen.rounds))
    judged = {verdict.scenario: verdict for verdict in verdicts(found, times, chosen.rounds)}
    print("| µs a record | | limit | |\n|---|---:|---:|---|")
    for name, took in times.items():
        verdict = judged.get(name)
        limit, word = ("", "") if verdict is None else (verdict.target, _WORDS[verdict.reached])
        print(f"| {name} | {took:.2f} | {limit} | {word} |")
    exceeded = any(not verdict.reached for verdict in judged.values())
    return 1 if chosen.check and exceeded else 0


_WORDS: Final = {True: "kept", False: "exceeded", None: "not judged"}


if __name__ == "__main__":
    sys.exit(main())
