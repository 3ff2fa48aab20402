"""Measures the CPU time per record of `send_many`, by the form of the call and the serializer.

    python -m benchmarks.bulk
    python -m benchmarks.bulk --records 200000

A producer sends lists of records of 100 bytes to a broker in the same process that does almost no
work. The forms run alternately, and each figure is the minimum of the rounds. "Alone" is the time
of the serializer when it is called in a loop over the same values.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import importlib.util
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from aiokprod import BulkResult, Producer, ProducerRecord
from benchmarks.loopback_broker import TOPIC, NearbyBroker
from benchmarks.targets import Verdict

RECORDS: Final = 50_000
ROUNDS: Final = 5
VALUE: Final = b"v" * 100

Send = Callable[[Producer[Any, Any], list[Any]], Any]


def by_column(producer: Producer[Any, Any], values: list[Any]) -> Any:
    """Send one list of values."""
    return producer.send_many(TOPIC, values)


def by_keyed_column(producer: Producer[Any, Any], values: list[Any]) -> Any:
    """Send one list of values, which are also the keys."""
    return producer.send_many(TOPIC, values, keys=values)


def by_records(producer: Producer[Any, Any], records: list[Any]) -> Any:
    """Send a list of `ProducerRecord`."""
    return producer.send_many(records)


def by_table(producer: Producer[Any, Any], tables: list[Any]) -> Any:
    """Send the single table of a list."""
    return producer.send_table(TOPIC, tables[0])


@dataclass(frozen=True)
class Form:
    """One way to send records. `serializer` is the value serializer."""

    name: str
    send: Send
    rows: Callable[[int], Iterable[Any]]
    serializer: Callable[[Any], bytes] | None = None


def forms() -> list[Form]:
    """Return all forms that can be measured in this environment."""

    def encode(text: str) -> bytes:
        return text.encode()

    def records(value: Any) -> Callable[[int], Iterable[Any]]:
        return lambda count: (ProducerRecord(TOPIC, value) for _ in range(count))

    text = VALUE.decode()
    found = [
        Form("bytes", by_column, lambda count: [VALUE] * count),
        Form("bytes with keys", by_keyed_column, lambda count: [VALUE] * count),
        Form("bytearray", by_column, lambda count: (bytearray(VALUE) for _ in range(count))),
        Form("memoryview", by_column, lambda count: (memoryview(VALUE) for _ in range(count))),
        Form("str, Python function", by_column, lambda count: [text] * count, encode),
        Form("str, str.encode", by_column, lambda count: [text] * count, str.encode),
        Form("ProducerRecord", by_records, records(VALUE)),
        Form("ProducerRecord, str, Python function", by_records, records(text), encode),
    ]
    if importlib.util.find_spec("orjson") is not None:
        orjson: Any = importlib.import_module("orjson")
        document = {"id": 12345, "name": "x" * 60, "price": 99.5}
        row = [document]
        found.append(Form("dict, orjson.dumps", by_column, lambda count: row * count, orjson.dumps))
    if importlib.util.find_spec("pyarrow") is not None:
        pyarrow: Any = importlib.import_module("pyarrow")

        def table(count: int) -> Iterable[Any]:
            return [pyarrow.table({"value": [text] * count})]

        found.append(Form("table of strings", by_table, table))
        found.append(Form("table of strings, Python function", by_table, table, encode))
    return found


async def once(form: Form, rows: list[Any]) -> float:
    """Return the CPU time of one call, s."""
    environment = NearbyBroker().environment()
    async with Producer(
        bootstrap_servers="nearby:9092", environment=environment, value_serializer=form.serializer
    ) as producer:
        await producer.send(TOPIC, None)
        gc.collect()
        started = time.process_time()
        result: BulkResult = await form.send(producer, rows)
        used = time.process_time() - started
        result.raise_for_errors()
        return used


def alone(form: Form, rows: list[Any]) -> float:
    """Return the CPU time of the serializer alone, s."""
    serializer = form.serializer
    if serializer is None:
        return 0.0
    values = rows
    if form.send is by_records:
        values = [row.value for row in rows]
    elif form.send is by_table:
        values = rows[0]["value"].to_pylist()
    started = time.process_time()
    for value in values:
        serializer(value)
    return time.process_time() - started


def measure(records: int, rounds: int) -> dict[str, tuple[float, float]]:
    """Return the CPU time per record in µs by form: (the call, its serializer alone)."""
    calls: dict[str, list[float]] = {}
    serializers: dict[str, list[float]] = {}
    for _ in range(rounds):
        for form in forms():
            rows = list(form.rows(records))
            calls.setdefault(form.name, []).append(asyncio.run(once(form, rows)))
            serializers.setdefault(form.name, []).append(alone(form, rows))
    return {
        name: (min(used) / records * 1e6, min(serializers[name]) / records * 1e6)
        for name, used in calls.items()
    }


def verdicts(times: Mapping[str, tuple[float, float]]) -> list[Verdict]:
    """Check the limits of the forms: the call must take less than 1 µs more than the serializer, or
    0.8 µs for `ProducerRecord`s."""
    made = []
    for name, (whole, own) in times.items():
        if name == "ProducerRecord" or own > 0:
            most = 1.0 if own > 0 else 0.8
            target = f"≤ {most:g} µs" + (" beyond the serializer" if own > 0 else "")
            difference = whole - own
            made.append(
                Verdict(f"send_many, {name}", target, f"{difference:.2f} µs", difference <= most)
            )
    return made


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.bulk",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--records", type=int, default=RECORDS, help="records of a call")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    chosen = parser.parse_args()
    print("| µs a record | call | serializer alone | difference |\n|---|---:|---:|---:|")
    for name, (whole, own) in measure(chosen.records, chosen.rounds).items():
        print(f"| {name} | {whole:.3f} | {own:.3f} | {whole - own:.3f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
