"""Counts the instructions per record with valgrind; other programs do not affect the result.

    python -m benchmarks.instructions
    python -m benchmarks.instructions --only request batch --calls    # needs no valgrind

The benchmark runs the compiled append path, and a whole producer with a broker in the same process
that does almost no work, under `valgrind --tool=callgrind`. Each case runs with few and with many
records (or requests). The difference of the two runs, divided by the difference of the numbers, is
the cost of a record, including the interpreter for Python code. `--calls` counts calls of this
package's Python functions instead.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from aiokprod import Producer
    from aiokprod.serializers import AnySerializer

FEW: Final = 20_000
MANY: Final = 120_000
FEW_REQUESTS: Final = 200
MANY_REQUESTS: Final = 1_200
TIMEOUT: Final = 600.0
_COLLECTED: Final = re.compile(r"Collected : (\d+)")

VALUE: Final = b"v" * 100


def _keys(count: int) -> list[bytes]:
    """Return `count` keys. The number of key objects is the same for few and for many records, so
    that their creation is not measured."""
    made = [b"customer-%07d" % number for number in range(10_000)]
    return (made * (count // len(made) + 1))[:count]


def column(count: int) -> None:
    """Append a column, as `send_many` does."""
    from benchmarks.append_harness import AppendHarness

    AppendHarness(3).append_column([VALUE] * count)


def keyed_column(count: int) -> None:
    """Append a column with keys."""
    from benchmarks.append_harness import AppendHarness

    AppendHarness(3).append_column([VALUE] * count, _keys(count))


def bytearray_column(count: int) -> None:
    """Append a column that repeats one bytearray, so that its creation is not measured."""
    from aiokprod._client.record_serializers import RecordSerializers
    from benchmarks.append_harness import AppendHarness

    harness = AppendHarness(3, serializers=RecordSerializers(None, None))
    harness.append_column([bytearray(VALUE)] * count)


def serialized_column(count: int) -> None:
    """Append a column with a compiled serializer that only returns its bytes."""
    from aiokprod._client.record_serializers import RecordSerializers
    from benchmarks.append_harness import AppendHarness

    harness = AppendHarness(3, serializers=RecordSerializers(None, VALUE.__getitem__))
    harness.append_objects([slice(None)] * count)


def records(count: int) -> None:
    """Append a list that repeats one `ProducerRecord`, so that its creation is not measured."""
    from aiokprod.records import ProducerRecord
    from benchmarks.append_harness import TOPIC, AppendHarness

    AppendHarness(3).append_records([ProducerRecord(TOPIC, VALUE)] * count)


def submit(count: int) -> None:
    """Call `await submit()` in a loop. The result includes the interpreter."""
    from benchmarks.append_harness import TOPIC, AppendHarness

    call = AppendHarness(3).appender.submit

    async def run() -> None:
        for value in [VALUE] * count:
            await call(TOPIC, value)

    _without_waiting(run())


def text_by_caller(count: int) -> None:
    """Call `await submit(encode(text))` in a loop."""
    from benchmarks.append_harness import TOPIC, AppendHarness

    call = AppendHarness(3).appender.submit

    async def run() -> None:
        for text in [TEXT] * count:
            await call(TOPIC, ENCODE(text))

    _without_waiting(run())


def text(count: int) -> None:
    """Do the same as `text_by_caller`, with the function as serializer."""
    _submit_serialized(count, TEXT, ENCODE)


TEXT: Final = VALUE.decode()
ENCODE: Final[Callable[[str], bytes]] = lambda text: text.encode()  # noqa: E731
DOCUMENT: Final = {"id": 7, "name": "customer-0000007", "items": [1, 2, 3], "price": 9.5}


def orjson_by_caller(count: int) -> None:
    """Call `await submit(orjson.dumps())` in a loop."""
    import orjson

    from benchmarks.append_harness import TOPIC, AppendHarness

    call = AppendHarness(3).appender.submit

    async def run() -> None:
        for value in [DOCUMENT] * count:
            await call(TOPIC, orjson.dumps(value))

    _without_waiting(run())


def orjson_dumps(count: int) -> None:
    """Do the same as `orjson_by_caller`, with `orjson.dumps` as serializer."""
    import orjson

    _submit_serialized(count, DOCUMENT, orjson.dumps)


def _submit_json(count: int, backend: Literal["json", "orjson", "msgspec"]) -> None:
    from aiokprod import JsonSerializer

    _submit_serialized(count, DOCUMENT, JsonSerializer(backend=backend))


def _submit_serialized(count: int, value: object, serializer: AnySerializer) -> None:
    from aiokprod._client.record_serializers import RecordSerializers
    from benchmarks.append_harness import TOPIC, AppendHarness

    call = AppendHarness(3, serializers=RecordSerializers(None, serializer)).appender.submit

    async def run() -> None:
        for each in [value] * count:
            await call(TOPIC, each)

    _without_waiting(run())


def _without_waiting(coroutine: Coroutine[Any, Any, None]) -> None:
    try:
        coroutine.send(None)
    except StopIteration:
        return
    raise AssertionError("submit waited although there was room")


def _with_hooks(count: int, *, intercepted: bool = False, **options: Any) -> None:
    """Append with user code, as `try_submit` does, and acknowledge the batches."""
    from aiokprod._client.record_hooks import RecordHooks
    from aiokprod._client.record_serializers import RecordSerializers
    from aiokprod.interceptors import InterceptorChain
    from aiokprod.observer import Observer
    from benchmarks.append_harness import TOPIC, AppendHarness
    from benchmarks.clients.ours import NothingDone

    interceptors = InterceptorChain([NothingDone()]) if intercepted else None
    hooks = RecordHooks(interceptors, options.pop("plugins", ()), Observer())
    harness = AppendHarness(
        1, keep=True, serializers=RecordSerializers(None, None), hooks=hooks, **options
    )
    append = harness.appender.try_append
    for _ in range(count):
        append(TOPIC, VALUE)
    for core in harness.kept:
        core.acknowledge(0)


def partitioned(count: int) -> None:
    """Append with a callable as partitioner."""
    _with_hooks(count, partitioner=lambda *arguments: 0)


def intercepted(count: int) -> None:
    """Append with an interceptor that does nothing."""
    _with_hooks(count, intercepted=True)


def plugged(count: int) -> None:
    """Append with a plug-in that does nothing."""
    from benchmarks.clients.ours import NothingDone

    _with_hooks(count, plugins=(NothingDone(),))


def settled(count: int) -> None:
    """Append as `try_submit` does, acknowledge the batch, and read the result of each handle."""
    from benchmarks.append_harness import TOPIC, AppendHarness

    harness = AppendHarness(1, keep=True)
    append = harness.appender.try_append
    handles = [append(TOPIC, VALUE) for _ in range(count)]
    for core in harness.kept:
        core.seal()
        core.finish()
        core.acknowledge(0)
    for handle in handles:
        assert handle is not None
        handle.result()  # type: ignore[union-attr]  # of plain bytes it is a handle


def request(count: int) -> None:
    """Call `await send()`, one record after the other. Each record needs a batch and a request."""
    from benchmarks.loopback_broker import TOPIC

    async def run(producer: Producer[bytes, bytes]) -> None:
        for _ in range(count):
            await producer.send(TOPIC, VALUE)

    _with_producer(run)


def crowd(count: int) -> None:
    """Send `count` records from 64 tasks, each of which awaits one `send()` after the other."""
    _crowd(count, VALUE)


def crowd_within(count: int) -> None:
    """Do the same as `crowd`, with `send(timeout=5)`."""
    _crowd(count, VALUE, timeout=5)


def crowd_serialized(count: int) -> None:
    """Do the same as `crowd`, with a serializer for text."""
    _crowd(count, VALUE.decode(), value_serializer=lambda text: text.encode())


def _crowd(count: int, value: Any, *, timeout: float | None = None, **settings: Any) -> None:
    from benchmarks.loopback_broker import TOPIC

    async def run(producer: Producer[Any, Any]) -> None:
        left = iter(range(count))

        async def task() -> None:
            for _ in left:
                await producer.send(TOPIC, value, timeout=timeout)

        async def plain_task() -> None:
            for _ in left:
                await producer.send(TOPIC, value)

        start = plain_task if timeout is None else task
        await asyncio.gather(*(start() for _ in range(64)))

    _with_producer(run, **settings)


def batch(count: int) -> None:
    """Send `count` times 128 KiB by `send_many`, including the append and the checksums."""
    from benchmarks.loopback_broker import TOPIC

    async def run(producer: Producer[bytes, bytes]) -> None:
        for first in range(0, count, SHARES_AT_ONCE):
            batches = min(SHARES_AT_ONCE, count - first)
            await producer.send_many(TOPIC, [VALUE] * (batches * RECORDS_OF_128_KIB))

    _with_producer(run)


RECORDS_OF_128_KIB: Final = 1_190
SHARES_AT_ONCE: Final = 40


def _with_producer(run: Callable[[Producer[Any, Any]], Awaitable[None]], **settings: Any) -> None:
    from aiokprod import Producer
    from benchmarks.loopback_broker import NearbyBroker

    async def main() -> None:
        environment = NearbyBroker().environment()
        settings["bootstrap_servers"] = "nearby:9092"
        async with Producer(environment=environment, **settings) as producer:
            await run(producer)

    asyncio.run(main())


CASES: Final[Mapping[str, Callable[[int], None]]] = {
    "column": column,
    "keyed_column": keyed_column,
    "bytearray_column": bytearray_column,
    "serialized_column": serialized_column,
    "records": records,
    "submit": submit,
    "text_by_caller": text_by_caller,
    "text": text,
    "orjson_by_caller": orjson_by_caller,
    "orjson_dumps": orjson_dumps,
    "orjson": partial(_submit_json, backend="orjson"),
    "msgspec": partial(_submit_json, backend="msgspec"),
    "json": partial(_submit_json, backend="json"),
    "settled": settled,
    "partitioned": partitioned,
    "intercepted": intercepted,
    "plugged": plugged,
    "request": request,
    "crowd": crowd,
    "crowd_within": crowd_within,
    "crowd_serialized": crowd_serialized,
    "batch": batch,
}
OF_REQUESTS: Final = frozenset({"request", "batch"})
WORDS: Final = {
    "partitioned": "`try_submit`'s append with a callable as partitioner, settlement",
    "intercepted": "the same with an interceptor that does nothing",
    "plugged": "the same with a plug-in that does nothing",
    "column": "append of 100 bytes, as `send_many` does it",
    "keyed_column": "the same with a key of 16 bytes and murmur2",
    "bytearray_column": "the same with a bytearray and no key",
    "serialized_column": "the same with a serializer that returns its bytes, itself included",
    "records": "the same as a list of `ProducerRecord`",
    "submit": "`await submit()`, the calling loop included",
    "text_by_caller": "`await submit(encode(text))`, `encode = lambda text: text.encode()`",
    "text": "the same with `value_serializer=encode`",
    "orjson_by_caller": "`await submit(orjson.dumps())` of a document of 62 bytes",
    "orjson_dumps": "the same with `value_serializer=orjson.dumps`",
    "orjson": 'the same with `JsonSerializer(backend="orjson")`',
    "msgspec": "the same with msgspec",
    "json": "the same with the standard library",
    "settled": "append with a handle, settlement, `handle.result()`",
    "request": "a request of one record: `await send()`",
    "crowd": "a record of 64 tasks that `await send()`, in requests of 64",
    "crowd_within": "the same with `send(timeout=5)`",
    "crowd_serialized": "the same with `value_serializer=lambda text: text.encode()`",
    "batch": "128 KiB of `send_many`, 1 190 records of 100 bytes",
}


def count(name: str, records: int) -> int:
    """Return the instructions of a whole process. Raises RuntimeError with valgrind's output."""
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
    """Return the number of calls of this package's Python functions in a run in this process."""
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
    """Return the cost of an additional record or request."""
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
