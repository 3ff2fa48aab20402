"""Record values that identify their records, created and checked a million at a time.

A value has 100 bytes, little endian: magic, producer, requested partition (-1: none), topic,
sequence, a digest over these fields, and filler derived from the digest. The digest detects a value
that was truncated, mixed up or written to another topic or partition, which a batch's CRC cannot.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

SIZE = 100
MAGIC = 0x43414F53  # "SOAC"
NOT_ASKED = -1

LAYOUT = np.dtype(
    [
        ("magic", "<u4"),
        ("producer", "<u2"),
        ("asked", "<i2"),
        ("topic", "<u8"),
        ("sequence", "<u8"),
        ("digest", "<u8"),
        ("filler", "<u8", (8,)),
        ("tail", "<u4"),
    ]
)
assert LAYOUT.itemsize == SIZE

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FILLERS = (np.arange(1, 9, dtype=np.uint64) * _GOLDEN)[None, :]


def topic_number(topic: str) -> int:
    return int.from_bytes(hashlib.blake2b(topic.encode(), digest_size=8).digest(), "little")


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply the finaliser of splitmix64: every input bit affects every output bit."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _seal(rows: NDArray[Any]) -> None:
    """Write the digest and the filler, derived from the other fields."""
    who = (rows["producer"].astype(np.uint64) << np.uint64(16)) | rows["asked"].astype(
        np.int64
    ).view(np.uint64) & np.uint64(0xFFFF)
    digest = _mix(_mix(_mix(rows["topic"] + _GOLDEN) ^ rows["sequence"]) + who)
    rows["digest"] = digest
    rows["filler"] = _mix(digest[:, None] + _FILLERS)
    rows["tail"] = _mix(digest ^ _GOLDEN) & np.uint64(0xFFFFFFFF)


def make(topic: str, producer: int, first: int, asked: NDArray[np.int16]) -> list[bytes]:
    """Return values of the records `first`, `first + 1`, …, one for each partition in `asked`."""
    rows: NDArray[Any] = np.zeros(len(asked), LAYOUT)
    rows["magic"] = MAGIC
    rows["producer"] = producer
    rows["asked"] = asked
    rows["topic"] = topic_number(topic)
    rows["sequence"] = np.arange(first, first + len(asked), dtype=np.uint64)
    _seal(rows)
    block = rows.tobytes()
    return [block[at : at + SIZE] for at in range(0, len(block), SIZE)]


def read(topic: str, values: Sequence[bytes]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Return the fields of values of length `SIZE`, and which of the values have a valid digest."""
    rows = np.frombuffer(b"".join(values), LAYOUT)
    wanted = rows.copy()
    wanted["magic"] = MAGIC
    wanted["topic"] = topic_number(topic)
    _seal(wanted)
    return rows, rows == wanted
