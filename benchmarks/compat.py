"""Compares the CPU time of compatible producers with that of the originals, on the mock brokers.

    python -m benchmarks.compat [--records 100000] [--rounds 5] [--check]

The cases are `AIOKafkaProducer.send` of aiokafka and of `aiokprod.compat.aiokafka` (each future is
awaited at the end), `Producer.submit`, and FastStream's `publish` and `publish_batch` with either
producer. They run alternately in one process. The figures are medians, with the range. `--check`
fails unless `send` costs at most 1.5 us more than `submit` and a quarter of aiokafka's `send`, and
`publish` is 1.5 times and `publish_batch` 3 times as fast as with aiokafka.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import aiokafka
import uvloop
from faststream.kafka import KafkaBroker

from aiokprod import Producer
from aiokprod.compat.aiokafka import AIOKafkaProducer
from aiokprod.compat.faststream import use_aiokprod
from aiokprod.testing.mock_cluster import MockCluster

VALUE: Final = bytes(100)
WINDOW: Final = 1_000
TOPIC: Final = "compat"

Work = Callable[[], Awaitable[None]]


async def _futures(send: Callable[[str, bytes], Awaitable[Any]], records: int) -> None:
    for _ in range(records // WINDOW):
        for future in [await send(TOPIC, VALUE) for _ in range(WINDOW)]:
            await future


async def _publish(broker: KafkaBroker, records: int) -> None:
    for _ in range(records // WINDOW):
        await asyncio.gather(*(broker.publish(VALUE, TOPIC) for _ in range(WINDOW)))


async def _publish_batch(broker: KafkaBroker, records: int) -> None:
    bodies = [VALUE[:10]] * WINDOW  # 1000 values of 100 bytes do not fit into aiokafka's batch
    for _ in range(records // WINDOW):
        await broker.publish_batch(*bodies, topic=TOPIC)


async def measure(servers: list[str], records: int, rounds: int) -> dict[str, list[float]]:
    """Return the CPU time per record in µs by case, with one figure per round."""
    native = Producer[bytes, bytes](bootstrap_servers=servers)
    ours = AIOKafkaProducer(bootstrap_servers=servers)
    theirs = aiokafka.AIOKafkaProducer(
        bootstrap_servers=servers, acks="all", enable_idempotence=True
    )
    # `publish_batch` of 1000 records must fit, so use the largest batch that aiokafka can send.
    options: dict[str, Any] = {"logger": None, "max_batch_size": 900_000, "acks": "all"}
    over_ours = use_aiokprod(KafkaBroker(servers, **options))
    over_theirs = KafkaBroker(servers, **options)
    await native.start()
    await ours.start()
    await theirs.start()
    await over_ours.connect()
    await over_theirs.connect()
    cases: dict[str, Work] = {
        "submit": lambda: _futures(native.submit, records),
        "send, aiokprod": lambda: _futures(ours.send, records),
        "send, aiokafka": lambda: _futures(theirs.send, records),
        "publish, aiokprod": lambda: _publish(over_ours, records // 4),
        "publish, aiokafka": lambda: _publish(over_theirs, records // 4),
        "publish_batch, aiokprod": lambda: _publish_batch(over_ours, records),
        "publish_batch, aiokafka": lambda: _publish_batch(over_theirs, records),
    }
    figures: dict[str, list[float]] = {name: [] for name in cases}
    for round_number in range(rounds + 1):
        for name, work in cases.items():
            gc.collect()
            began = time.process_time()
            await work()
            spent = time.process_time() - began
            count = records // 4 if name.startswith("publish,") else records
            if round_number:  # the first round is the warm-up
                figures[name].append(spent / count * 1e6)
    await native.close()
    await ours.stop()
    await theirs.stop()
    await over_ours.stop()
    await over_theirs.stop()
    return figures


def main() -> int:
    """Run the benchmark. Return the exit status, which is 1 if a check failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    with MockCluster() as cluster:
        servers = cluster.bootstrap_servers.split(",")
        figures = uvloop.run(measure(servers, options.records, options.rounds))
    median = {name: statistics.median(values) for name, values in figures.items()}
    for name, values in figures.items():
        print(f"{name:<26} {median[name]:7.2f} us a record  {min(values):.2f}..{max(values):.2f}")
    more = median["send, aiokprod"] - median["submit"]
    ratios = {
        call: median[f"{call}, aiokafka"] / median[f"{call}, aiokprod"]
        for call in ("send", "publish", "publish_batch")
    }
    print(f"send costs {more:.2f} us more than submit")
    print(", ".join(f"{call} {ratio:.1f} times as fast" for call, ratio in ratios.items()))
    wanted = {"send": 4.0, "publish": 1.5, "publish_batch": 3.0}
    missed = [call for call, least in wanted.items() if ratios[call] < least]
    if more > 1.5:
        missed.append("submit")
    if options.check and missed:
        print(f"missed: {', '.join(missed)}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
