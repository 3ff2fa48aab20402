from collections.abc import Sequence

DELIVERY_CHARGE: int
RECORD_OVERHEAD: int

def record_size_bound(
    value: bytes | None,
    key: bytes | None,
    headers: Sequence[tuple[str, bytes | None]] | None,
) -> int: ...
def murmur2(data: bytes) -> int: ...
def key_partition(key: bytes, partitions: int) -> int: ...
