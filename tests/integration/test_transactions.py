"""Transactions with real brokers: Kafka 4.3 with both transaction protocols, and 3.9. An
independent read_committed consumer reads the records back.

AIOKPROD_COPIER_RECORDS=100000 runs the copier at the size of Kafka's own transactions_test.
AIOKPROD_COPIER_RUNS=3 runs it three times.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from aiokprod import KafkaTimeout, Outcome, Producer, ProducerFenced
from aiokprod._engine.identity.coordinators import CoordinatorKind
from aiokprod.testing.kafka_admin import downgrade_feature
from aiokprod.testing.kafka_cluster import KAFKA_3, KAFKA_4, KafkaCluster
from tests.integration.runner import Run
from tests.transactions.readback import first_committed, read_committed

KINDS = {"4.3-TV2": KAFKA_4, "4.3-TV1": KAFKA_4, "3.9": KAFKA_3}
RECORDS = int(os.environ.get("AIOKPROD_COPIER_RECORDS", "9000"))
RUNS = int(os.environ.get("AIOKPROD_COPIER_RUNS", "1"))
PARTITIONS = 3
# By default, brokers search for timed-out transactions every 10 s.
CHECKED_EVERY_MS = 500
PER_TRANSACTION = 750
ABORT_PERCENT = 10
KILLS = 3


@pytest.fixture(scope="module", params=list(KINDS))
def cluster(request: pytest.FixtureRequest) -> Iterator[KafkaCluster]:
    """Start three nodes, of each kind in turn."""
    checks = "transaction.abort.timed.out.transaction.cleanup.interval.ms"
    made = KafkaCluster(3, version=KINDS[request.param], config={checks: str(CHECKED_EVERY_MS)})
    made.start_blocking()
    try:
        if request.param.endswith("TV1"):
            downgrade_feature(made.bootstrap_servers, "transaction.version", 1)
        yield made
    finally:
        made.stop_blocking()


def protocol(producer: Producer[Any, Any]) -> int:
    runtime = producer._lifecycle.runtime
    assert runtime is not None
    assert runtime.transactions is not None
    return 2 if runtime.transactions.manager.progress.tv2 else 1


def test_transactions_with_aborts_committed_ones_visible_in_order(
    cluster: KafkaCluster, run: Run, topic: str, request: pytest.FixtureRequest
) -> None:
    wanted: dict[int, list[bytes]] = {partition: [] for partition in range(PARTITIONS)}
    dice = random.Random(8)

    async def transaction(producer: Producer[bytes, bytes], number: int) -> None:
        parts = [(part % PARTITIONS, b"%d-%d" % (number, part)) for part in range(40)]
        await producer.begin_transaction()
        for partition, value in parts:
            await producer.submit(topic, value, partition=partition)
        if dice.random() < 0.2:
            await producer.abort_transaction()
            return
        await producer.commit_transaction()
        for partition, value in parts:
            wanted[partition].append(value)

    async def scenario() -> int:
        await cluster.create_topic(topic, partitions=PARTITIONS)
        async with Producer(
            bootstrap_servers=cluster.bootstrap_servers, transactional_id=topic
        ) as producer:
            for number in range(60):
                await transaction(producer, number)
            return protocol(producer)

    spoken = run(scenario())
    assert spoken == (2 if "TV2" in request.node.name else 1)
    assert read_committed(cluster.bootstrap_servers, topic) == wanted


def test_abort_right_after_a_commit_leaves_the_producer_usable(
    cluster: KafkaCluster, run: Run, topic: str
) -> None:
    """During the abort, the brokers may still be writing the markers of the commit, and may have
    received any part of the new transaction."""
    dice = random.Random(5)

    async def scenario() -> None:
        await cluster.create_topic(topic, partitions=PARTITIONS)
        async with Producer(
            bootstrap_servers=cluster.bootstrap_servers, transactional_id=topic
        ) as producer:
            for number in range(30):
                async with producer.transaction():
                    for partition in range(PARTITIONS):
                        await producer.submit(topic, b"%d" % number, partition=partition)
                await producer.begin_transaction()
                await producer.submit(topic, b"aborted", partition=number % PARTITIONS)
                await asyncio.sleep(dice.choice([0.0, 0.002, 0.01, 0.03]))
                await producer.abort_transaction()

    run(scenario())
    wanted = [b"%d" % number for number in range(30)]
    assert read_committed(cluster.bootstrap_servers, topic) == dict.fromkeys(
        range(PARTITIONS), wanted
    )


def test_restart_same_id_fences_and_aborts(cluster: KafkaCluster, run: Run, topic: str) -> None:
    async def scenario() -> None:
        await cluster.create_topic(topic, partitions=PARTITIONS)
        options: dict[str, Any] = {
            "bootstrap_servers": cluster.bootstrap_servers,
            "transactional_id": topic,
        }
        async with Producer(**options) as old:
            await old.begin_transaction()
            await old.send(topic, b"zombie", partition=0)
            async with Producer(**options) as new:
                async with new.transaction():
                    await new.send(topic, b"new", partition=0)
                with pytest.raises(ProducerFenced):
                    await old.commit_transaction()

    run(scenario())
    assert read_committed(cluster.bootstrap_servers, topic) == {0: [b"new"], 1: [], 2: []}


def test_crash_mid_transaction_readers_wait_no_longer_than_its_timeout(
    cluster: KafkaCluster, run_uvloop: Run, topic: str
) -> None:
    """The process is killed with SIGKILL, and no producer starts again with this id. Only the
    coordinator's transaction timeout ends the transaction."""
    timeout_s = 5.0
    servers = cluster.bootstrap_servers

    async def scenario() -> float:
        await cluster.create_topic(topic, partitions=PARTITIONS)
        command = [sys.executable, "-m", "tests.integration.crasher", servers, topic]
        victim = await asyncio.create_subprocess_exec(
            *command, str(int(timeout_s * 1000)), stdout=asyncio.subprocess.PIPE
        )
        assert victim.stdout is not None
        assert await asyncio.wait_for(victim.stdout.readline(), 60) == b"open\n"
        opened = time.monotonic()
        victim.kill()
        await victim.wait()
        other = Producer(bootstrap_servers=servers, transactional_id=topic)
        async with other, other.transaction():
            await other.send(topic, b"behind it", partition=0)
        assert await asyncio.to_thread(first_committed, servers, topic) == b"behind it"
        return time.monotonic() - opened

    waited = run_uvloop(scenario())
    print(f"readers waited {waited:.2f} s for a transaction of {timeout_s:.0f} s")
    assert timeout_s - 2 < waited < timeout_s + CHECKED_EVERY_MS / 1000 + 30
    assert read_committed(servers, topic) == {0: [b"behind it"], 1: [], 2: []}


@pytest.mark.parametrize("verdict", ["commit", "abort"])
def test_end_brokers_silent_returns_in_time_then_resumes(
    cluster: KafkaCluster, run_uvloop: Run, topic: str, verdict: str
) -> None:
    """Every broker is frozen but connections stay open, so only the client's timeout ends the
    call."""
    timeout_s = 1.0

    async def scenario() -> list[float]:
        await cluster.create_topic(topic, partitions=PARTITIONS)
        took = []
        async with Producer(
            bootstrap_servers=cluster.bootstrap_servers, transactional_id=topic
        ) as producer:
            end = getattr(producer, f"{verdict}_transaction")
            await producer.begin_transaction()
            await producer.send(topic, b"v", partition=0)
            await cluster.pause_all()
            try:
                for _ in range(2):
                    started = time.monotonic()
                    with pytest.raises(KafkaTimeout) as told:
                        await end(timeout=timeout_s)
                    took.append(time.monotonic() - started)
                    assert told.value.outcome is Outcome.UNKNOWN
            finally:
                await cluster.resume_all()
            await end(timeout=60)
            async with producer.transaction():
                await producer.send(topic, b"next", partition=0)
        return took

    assert max(run_uvloop(scenario())) < 30  # less than the request timeout
    wanted = [b"v", b"next"] if verdict == "commit" else [b"next"]
    assert read_committed(cluster.bootstrap_servers, topic) == {0: wanted, 1: [], 2: []}


def coordinator(producer: Producer[Any, Any], transactional_id: str) -> int:
    runtime = producer._lifecycle.runtime
    assert runtime is not None
    assert runtime._driver is not None
    found = runtime._driver._coordinators.known(CoordinatorKind.TRANSACTION, transactional_id)
    assert found is not None
    return found


def test_commit_coordinator_killed_returns_in_time_then_another_takes_over(
    cluster: KafkaCluster, run_uvloop: Run, topic: str
) -> None:
    timeout_s = 0.3  # before the failure of the broker is detected

    async def scenario() -> float:
        await cluster.create_topic(topic, partitions=PARTITIONS)
        async with Producer(
            bootstrap_servers=cluster.bootstrap_servers, transactional_id=topic
        ) as producer:
            await producer.begin_transaction()
            for partition in range(PARTITIONS):
                await producer.send(topic, b"v", partition=partition)
            victim = coordinator(producer, topic)
            await cluster.kill(victim)
            try:
                started = time.monotonic()
                with pytest.raises(KafkaTimeout):
                    await producer.commit_transaction(timeout=timeout_s)
                took = time.monotonic() - started
                await producer.commit_transaction(timeout=60)
            finally:
                await cluster.start_node(victim)
        return took

    assert run_uvloop(scenario()) < 30  # less than the request timeout
    found = read_committed(cluster.bootstrap_servers, topic)
    assert found == {partition: [b"v"] for partition in range(PARTITIONS)}


async def seed(servers: str, topic: str) -> dict[int, list[bytes]]:
    values = {
        p: [b"%d:%d" % (p, n) for n in range(RECORDS // PARTITIONS)] for p in range(PARTITIONS)
    }
    async with Producer(bootstrap_servers=servers) as producer:
        for partition, column in values.items():
            assert (await producer.send_many(topic, column, partition=partition)).ok
    return values


async def copier(servers: str, source: str, target: str, number: int) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.integration.copier", servers, source, target,
        str(PER_TRANSACTION), str(ABORT_PERCENT), str(number), str(RECORDS // PARTITIONS),
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip


async def bounce(cluster: KafkaCluster) -> None:
    """Kill and restart every broker, one at a time."""
    for node in cluster.node_ids:
        await asyncio.sleep(3)
        await cluster.kill(node)
        await asyncio.sleep(3)
        await cluster.restart(node)


async def sent(process: asyncio.subprocess.Process, records: int, within: float) -> None:
    """Wait until the copier has sent `records` records, including those of aborted transactions.

    The copier reports records within a transaction, so a transaction is open when this function
    returns.
    """
    assert process.stdout is not None
    async with asyncio.timeout(within):
        while records > 0:
            words = (await process.stdout.readline()).split()
            assert words, "the copier was to be killed at work"
            if words[0] == b"sent":
                records -= int(words[1])


async def copy_under_fire(cluster: KafkaCluster, source: str, target: str) -> float:
    """Kill the copier several times, each time after another fifth of the records, while the
    brokers are killed one by one. Return the duration."""
    servers = cluster.bootstrap_servers
    started = time.monotonic()
    bouncing = asyncio.ensure_future(bounce(cluster))
    process = await copier(servers, source, target, 0)
    try:
        for number in range(1, KILLS + 1):
            await sent(process, RECORDS // 5, 120)
            await asyncio.sleep(random.uniform(0, 0.1))  # before, during or after the commit
            process.kill()
            await process.wait()
            process = await copier(servers, source, target, number)
        await bouncing
        await asyncio.wait_for(process.communicate(), 300)
        assert process.returncode == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        bouncing.cancel()
        await asyncio.wait({bouncing})
    return time.monotonic() - started


@pytest.mark.parametrize(
    "cluster",
    # CI runs one of them, because each takes a minute.
    [pytest.param(kind, marks=() if kind == "4.3-TV2" else pytest.mark.slow) for kind in KINDS],
    indirect=True,
)
@pytest.mark.parametrize("attempt", range(1, RUNS + 1))
def test_copier_killed_and_brokers_bounced_output_equals_input(
    cluster: KafkaCluster, run_uvloop: Run, attempt: int
) -> None:
    source, target = f"in-{uuid.uuid4().hex[:8]}", f"out-{uuid.uuid4().hex[:8]}"

    async def scenario() -> dict[int, list[bytes]]:
        for topic in (source, target):
            await cluster.create_topic(topic, partitions=PARTITIONS)
        values = await seed(cluster.bootstrap_servers, source)
        took = await copy_under_fire(cluster, source, target)
        print(f"run {attempt}: {RECORDS} records copied in {took:.1f} s")
        return values

    wanted = run_uvloop(scenario())
    found = read_committed(cluster.bootstrap_servers, target)
    for partition, values in wanted.items():
        assert found[partition] == values, f"partition {partition}: {len(found[partition])}"
