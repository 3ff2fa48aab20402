"""Compares the CPU time of the Avro serializer with fastavro alone and with confluent-kafka.

    python -m benchmarks.serdes [--check]

Each case serializes one record repeatedly in this process, after the id of its schema is known. The
figures are minima of several runs, in microseconds of CPU time per record. `--check` fails unless a
record takes at most 1.3 times the time of `fastavro.schemaless_writer`, plus 1 us.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import sys
import time
from collections.abc import Callable
from typing import Any, Final

import fastavro
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer as ConfluentAvro
from confluent_kafka.serialization import SerializationContext

from aiokprod.serdes import AvroSerializer, Registry, RegistryRequest, RegistryResponse

RUNS: Final = 9
RECORDS: Final = 20_000
RATIO: Final = 1.3
EXTRA_US: Final = 1.0

_SMALL: Final = {
    "type": "record",
    "name": "Click",
    "fields": [{"name": "user", "type": "string"}, {"name": "at", "type": "long"}],
}
_ORDER: Final = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "customer", "type": "string"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "total", "type": "double"},
        {"name": "paid", "type": "boolean"},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "attributes", "type": {"type": "map", "values": "string"}},
        {
            "name": "lines",
            "type": {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "Line",
                    "fields": [
                        {"name": "article", "type": "string"},
                        {"name": "pieces", "type": "int"},
                        {"name": "price", "type": "double"},
                    ],
                },
            },
        },
    ],
}
CASES: Final[dict[str, tuple[dict[str, Any], dict[str, Any]]]] = {
    "2 fields": (_SMALL, {"user": "user-17", "at": 1_780_000_000_000}),
    "order with 3 lines": (
        _ORDER,
        {
            "id": 4711,
            "customer": "customer-42",
            "note": "leave at the door",
            "total": 123.45,
            "paid": True,
            "tags": ["new", "gift"],
            "attributes": {"channel": "web", "campaign": "autumn"},
            "lines": [
                {"article": f"article-{number}", "pieces": number, "price": 9.99}
                for number in range(1, 4)
            ],
        },
    ),
}
"""Schema and record by name."""


async def _registry(request: RegistryRequest) -> RegistryResponse:
    return RegistryResponse(200, json.dumps({"id": 1, "version": 1}).encode())


def _own(schema: dict[str, Any], record: Any) -> Callable[[], object]:
    serializer = AvroSerializer(
        Registry("http://registry.invalid", transport=_registry), schema, register=True
    )
    first = serializer.serialize("orders", [], record)
    if not isinstance(first, bytes | None):

        async def finish() -> object:
            return await first

        asyncio.run(finish())
    serialize = serializer.serialize
    # The schema id is known now, so no call needs to be awaited.
    assert isinstance(serialize("orders", [], record), bytes)
    return lambda: serialize("orders", [], record)


def _fastavro(schema: dict[str, Any], record: Any) -> Callable[[], object]:
    parsed = fastavro.parse_schema(schema)

    def write() -> bytes:
        buffer = io.BytesIO()
        fastavro.schemaless_writer(buffer, parsed, record)
        return buffer.getvalue()

    return write


def _confluent(schema: dict[str, Any], record: Any) -> Callable[[], object]:
    client = SchemaRegistryClient.new_client({"url": "mock://benchmark"})
    serializer = ConfluentAvro(client, json.dumps(schema))
    context = SerializationContext("orders", "value", [])
    return lambda: serializer(record, context)


def cpu_us(call: Callable[[], object]) -> float:
    """Return the minimum CPU time of a call, us."""
    least = float("inf")
    for _ in range(RUNS):
        began = time.process_time()
        for _ in range(RECORDS):
            call()
        least = min(least, time.process_time() - began)
    return least / RECORDS * 1e6


def main() -> int:
    """Run the benchmark. Return the exit status, which is 1 if a check failed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.serdes",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    failed = False
    for name, (schema, record) in CASES.items():
        bare = _fastavro(schema, record)
        assert _own(schema, record)() == b"\0\0\0\0\x01" + bytes(bare())  # type: ignore[call-overload]
        took = {
            "fastavro": cpu_us(bare),
            "aiokprod": cpu_us(_own(schema, record)),
            "confluent-kafka": cpu_us(_confluent(schema, record)),
        }
        limit = RATIO * took["fastavro"] + EXTRA_US
        failed |= took["aiokprod"] > limit
        print(
            f"{name}: "
            + ", ".join(f"{who} {value:.2f} us" for who, value in took.items())
            + f"; limit {limit:.2f} us: {'kept' if took['aiokprod'] <= limit else 'broken'}"
        )
    return int(check and failed)


if __name__ == "__main__":
    sys.exit(main())
