"""The values, keys and headers of the records, which are the same for every client.

They are deterministic and about as compressible as JSON. They are created before the clock starts.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.case import Case

POOL_BYTES: Final = 1 << 20
POOL_VALUES: Final = 1000
KEYS: Final = 10_000
CHUNK: Final = 1000

Header = tuple[str, bytes]


@dataclass(frozen=True, slots=True)
class Payloads:
    """A pool of records that senders use repeatedly.

    Attributes:
        values: different values, up to 1 000 or 1 MiB in total. They are bytes, or inputs of the
            case's serializer.
        keys: 10 000 keys, drawn at random from 10 000 different keys, or None.
        headers: the headers of every record, or None.
    """

    values: list[Any]
    keys: list[bytes] | None
    headers: list[Header] | None

    def chunk(self, size: int = CHUNK) -> list[Any]:
        """Return `size` values."""
        return list(itertools.islice(itertools.cycle(self.values), size))

    def key_chunk(self, size: int) -> list[bytes] | None:
        """Return `size` keys, or None if the records have no keys."""
        if self.keys is None:
            return None
        return list(itertools.islice(itertools.cycle(self.keys), size))

    def endless_keys(self) -> Iterator[bytes | None]:
        return itertools.repeat(None) if self.keys is None else itertools.cycle(self.keys)

    def endless(self) -> Iterator[Any]:
        return itertools.cycle(self.values)


def make(case: Case) -> Payloads:
    """Return the payloads of a case."""
    count = max(1, min(POOL_VALUES, POOL_BYTES // case.size))
    rng = random.Random(case.size)
    convert = _BUFFERS[case.buffer] if case.serializer == "none" else _VALUES[case.serializer]
    values = [convert(_value(rng, case.size)) for _ in range(count)]
    headers = [(f"header-{n}", b"%016d" % n) for n in range(case.headers)] or None
    return Payloads(values, key_list(KEYS) if case.keyed else None, headers)


def key_list(count: int) -> list[bytes]:
    """Return `count` keys of 16 bytes, in an order that does not follow their partitions."""
    rng = random.Random(count)
    return [b"customer-%07d" % rng.randrange(KEYS) for _ in range(count)]


_WORDS: Final = (
    "account", "amount", "city", "created", "currency", "delayed", "flight", "name", "origin",
    "state", "tail",
)  # fmt: skip


def _value(rng: random.Random, size: int) -> bytes:
    """Return a line of text of exactly `size` bytes that resembles JSON."""
    parts = ["{"]
    length = 1
    while length < size:
        field = f'"{rng.choice(_WORDS)}":{rng.randrange(10**9)},'
        parts.append(field)
        length += len(field)
    return "".join(parts)[: size - 1].encode() + b"}"


def _as_dict(text: bytes) -> dict[str, int]:
    """Return a dict whose JSON text has about the length of `text`."""
    pairs = (field.partition(b":") for field in text[1:-1].split(b",")[:-1])
    return {f"{name.decode()[1:-1]}{n}": int(number) for n, (name, _, number) in enumerate(pairs)}


_VALUES: Final[Mapping[str, Callable[[bytes], Any]]] = {
    "text": bytes.decode,
    "json": _as_dict,
    "orjson": _as_dict,
}

_BUFFERS: Final[Mapping[str, Callable[[bytes], Any]]] = {
    "bytes": bytes,
    "bytearray": bytearray,
    "memoryview": memoryview,
}


_SERIALIZERS: Final[Mapping[str, Callable[[Any], bytes] | None]] = {
    "none": None,
    "text": lambda text: text.encode(),
    "json": lambda data: json.dumps(data).encode(),
}


def serializer(case: Case) -> Callable[[Any], bytes] | None:
    """Return the value serializer of every client, or None if the values are bytes."""
    if case.serializer == "orjson":
        import orjson

        return orjson.dumps
    return _SERIALIZERS[case.serializer]
