"""A custom partitioner that gives the orders of big customers dedicated partitions.

python -m examples.custom_partitioner localhost:9092
"""

from __future__ import annotations

import asyncio
import sys

from aiokprod import ClusterSnapshot, Producer, RecordMetadata

BIG = (b"acme", b"globex")


class BigCustomersApart:
    """Assigns a dedicated partition to each big customer, and the remaining ones to the others.

    The arguments of a partitioner are the topic, the key and the value before and after
    serialization, and the cluster metadata. It must be fast, because it runs once per record.
    """

    def partition(
        self,
        topic: str,
        key: bytes | None,
        key_bytes: bytes | None,
        value: bytes | None,
        value_bytes: bytes | None,
        cluster: ClusterSnapshot,
    ) -> int:
        total = cluster.partition_count(topic) or 1
        reserved = min(len(BIG), total - 1)
        if key_bytes in BIG[:reserved]:
            return BIG.index(key_bytes)
        # A customer always gets the same partition, so that its orders stay in order.
        return reserved + sum(key_bytes or b"") % (total - reserved)


async def run(bootstrap: str) -> dict[bytes, set[int]]:
    """Sends a few orders and returns the partitions of each customer's orders."""
    customers = [*BIG, b"initech", b"umbrella", b"hooli"]
    seen: dict[bytes, set[int]] = {customer: set() for customer in customers}
    async with Producer(bootstrap_servers=bootstrap, partitioner=BigCustomersApart()) as producer:
        for number in range(100):
            customer = customers[number % len(customers)]
            order = b"order %d" % number
            metadata: RecordMetadata = await producer.send("orders", order, key=customer)
            seen[customer].add(metadata.partition)
    return seen


def main() -> None:
    seen = asyncio.run(run(sys.argv[1] if len(sys.argv) > 1 else "localhost:9092"))
    for customer, partitions in seen.items():
        print(f"{customer.decode():10} partitions {sorted(partitions)}")


if __name__ == "__main__":
    main()
