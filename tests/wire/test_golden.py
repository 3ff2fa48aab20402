"""Bytes written by Kafka 4.3.1 itself (`golden/RoundTrip.java`), compared with our encoders and
decoders."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from aiokprod._wire.batch_reader import read_batches
from aiokprod._wire.message import Message
from aiokprod._wire.messages import REQUESTS, RESPONSES
from tests.reference.records import PlainRecord
from tests.wire.batches import as_read, whole_batch
from tests.wire.strategies import VERSIONED, filled, versioned_id

GOLDEN_FILE = Path(__file__).parent / "golden" / "golden.txt"

LINES = [line.split(" ") for line in GOLDEN_FILE.read_text().splitlines()]


def messages() -> Iterator[tuple[type[Message], int, bytes]]:
    for kind, *rest in LINES:
        if kind != "batch":
            registry = REQUESTS if kind == "request" else RESPONSES
            api_key, version, data = rest
            yield registry[int(api_key)], int(version), bytes.fromhex(data)


GOLDEN = {
    (message, version, null): data
    for number, (message, version, data) in enumerate(messages())
    for null in [bool(number % 2)]
}

BATCHES = {int(rest[0]): bytes.fromhex(rest[1]) for kind, *rest in LINES if kind == "batch"}

RECORDS = [
    PlainRecord(1_700_000_000_123, None, b"value-" * 20),
    PlainRecord(1_700_000_000_100, b"", None),
    PlainRecord(1_700_000_000_101, b"key", b"", (("h", None), ("é", b"x"))),
]


@pytest.mark.parametrize("null", [False, True])
@pytest.mark.parametrize(("message", "version"), VERSIONED, ids=versioned_id)
def test_message_has_the_bytes_of_java(message: type[Message], version: int, null: bool) -> None:
    golden = GOLDEN[message, version, null]
    sample = filled(message, version, null=null)
    assert sample.encode(version) == golden
    assert message.decode(golden, version) == sample


@pytest.mark.parametrize("codec_id", range(5))
def test_batch_of_java_is_read(codec_id: int) -> None:
    (batch,) = read_batches(BATCHES[codec_id])
    assert batch.records() == as_read(RECORDS)
    header = batch.header
    assert header.codec_id == codec_id
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (4000, 3, 17)
    assert header.is_transactional


def test_uncompressed_batch_has_the_bytes_of_java() -> None:
    ours = whole_batch(RECORDS, producer_id=4000, epoch=3, base_sequence=17, transactional=True)
    assert ours == BATCHES[0]
