"""Checks 10, 11, 25: processes, memory, connections, and event loops."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aiokprod.testing.kafka_cluster import KafkaCluster
from tests.spark.integration.conftest import ROOT
from tests.spark.integration.spark_helpers import (
    assert_numbers,
    batches_done,
    numbers,
    rate,
    read_back,
    sink,
    start_stream,
    wait_for,
)

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("reuse", ["true", "false"])
def test_check_25_loops_and_worker_reuse(
    broker: KafkaCluster, topic: str, loop: str, reuse: str
) -> None:
    """The test uses a separate JVM, because worker reuse is a setting of the application."""
    program = textwrap.dedent(
        f"""
        from tests.spark.integration.conftest import session_of
        from tests.spark.integration.spark_helpers import numbers, sink
        spark = session_of(spark__python__worker__reuse={reuse!r},
                           spark__executor__pyspark__memory="1g")
        for start in range(3):
            sink(numbers(spark, 1000, start=start * 1000), {broker.bootstrap_servers!r},
                 {topic!r}, loop={loop!r}).save()
        spark.stop()
        """
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, timeout=150)
    assert_numbers(read_back(broker.bootstrap_servers, topic), 3000)


def test_check_25_fork_of_a_process_with_a_producer(broker: KafkaCluster, topic: str) -> None:
    """A worker is forked from a worker that has already written. The child opens its own
    connections, and the connections of the parent do not change."""
    program = textwrap.dedent(
        f"""
        import os, sys
        from tests.spark.integration.test_protocol import Query

        def sockets():
            links = (os.readlink(f"/proc/self/fd/{{one}}") for one in os.listdir("/proc/self/fd")
                     if os.path.exists(f"/proc/self/fd/{{one}}"))
            return {{link for link in links if link.startswith("socket:")}}

        query = Query({broker.bootstrap_servers!r})
        query.topic = query.options["topic"] = {topic!r}
        query.options.pop("transactionalIdPrefix")
        query.options["delivery"] = "at_least_once"
        query.task(0, 0, 3)
        before = sockets()
        child = os.fork()
        if child == 0:
            query.task(0, 1, 3)
            os._exit(0 if sockets() - before else 1)
        assert os.waitpid(child, 0)[1] == 0
        query.task(0, 2, 3)
        assert sockets() == before, "the producer was kept"
        """
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, timeout=100)
    assert_numbers(read_back(broker.bootstrap_servers, topic), 300)


@pytest.mark.parametrize("missing", ["crc32c", "pyarrow"])
def test_check_27_worker_without_a_package_says_what_the_docs_explain(
    broker: KafkaCluster, topic: str, folder: Path, missing: str
) -> None:
    """The interpreter has only the packages that Spark puts on its path, or our own
    dependencies."""
    bare, site = folder / "bare", folder / "site"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    site.mkdir()
    if missing == "pyarrow":
        for name in ("crc32c", "lz4", "uvloop", "zstandard"):
            found = importlib.util.find_spec(name)
            assert found is not None
            assert found.origin is not None
            (site / name).symlink_to(Path(found.origin).parent)
    program = textwrap.dedent(
        f"""
        from pyspark.sql import SparkSession
        from tests.spark.integration.spark_helpers import numbers, sink
        spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
        sink(numbers(spark.getOrCreate(), 10), {broker.bootstrap_servers!r}, {topic!r}).save()
        """
    )
    environment = {
        "PYSPARK_PYTHON": str(bare / "bin" / "python"),
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(site)]),
    }
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=os.environ | environment, text=True,
        timeout=150, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode != 0
    told = f"No module named '{missing}'"
    assert told in done.stdout, done.stdout[-3000:]
    assert told in (ROOT / "docs" / "spark.md").read_text()


def test_check_25_idle_for_more_than_a_minute(spark: Any, broker: KafkaCluster, topic: str) -> None:
    sink(numbers(spark, 100), broker.bootstrap_servers, topic).save()
    time.sleep(70)
    sink(numbers(spark, 100, start=100), broker.bootstrap_servers, topic).save()
    assert_numbers(read_back(broker.bootstrap_servers, topic), 200)


def connections(port: int) -> set[str]:
    """Return the local addresses of established client connections to a broker's port."""
    done = subprocess.run(
        ["ss", "-Htn", "state", "established", f"( dport = :{port} )"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return {line.split()[2] for line in done.stdout.splitlines()}


def test_check_11_warm_stream_opens_no_new_connection(
    spark: Any, broker: KafkaCluster, topic: str, folder: Path
) -> None:
    port = int(broker.bootstrap_servers.split(":")[1])
    query = start_stream(rate(spark), broker.bootstrap_servers, topic, folder)
    wait_for(lambda: batches_done(query) >= 10, "warm-up")
    before, batch = connections(port), batches_done(query)
    wait_for(lambda: batches_done(query) >= batch + 20, "20 more batches")
    new = connections(port) - before
    query.stop()
    # Spark may assign a partition to a worker process that has not had one yet.
    assert len(new) <= 2, new


def worker_memory() -> int:
    """Return the resident bytes of the largest Python worker."""
    found = [0]
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if b"pyspark" in (entry / "cmdline").read_bytes():
                pages = int((entry / "statm").read_text().split()[1])
                if int((entry / "stat").read_text().split()[3]) != os.getpid():
                    found.append(pages * os.sysconf("SC_PAGE_SIZE"))
        except OSError:
            continue
    return max(found)


def test_check_10_memory_is_bounded_while_the_broker_is_paused(
    spark: Any, broker: KafkaCluster, topic: str, make_topic: Callable[..., None]
) -> None:
    import asyncio

    make_topic(topic)
    limit = 16 * 1024 * 1024
    servers = broker.bootstrap_servers
    sink(numbers(spark, 200_000), servers, topic, maxBufferedBytes=limit).save()
    base = worker_memory()
    failed: list[str] = []
    asyncio.run(broker.pause(1))

    def work() -> None:
        from aiokprod.spark import register

        register(spark)
        try:
            sink(
                numbers(spark, 4_000_000, start=200_000), servers, topic,
                maxBufferedBytes=limit, preflight="false",
            ).save()  # fmt: skip
        except Exception as error:
            failed.append(str(error))

    thread = threading.Thread(target=work)
    thread.start()
    try:
        peak = 0
        for _ in range(60):
            time.sleep(0.5)
            peak = max(peak, worker_memory())
    finally:
        asyncio.run(broker.resume(1))
    thread.join(180)
    assert not failed
    grown = peak - base
    print(f"worker grew by {grown / 2**20:.1f} MiB of {limit / 2**20:.0f}")
    arrow_batch = 10_000 * 120
    # The last summand covers freed memory that the allocator keeps.
    assert grown <= limit + 2 * arrow_batch + 24 * 1024 * 1024
    assert len({one.key for one in read_back(servers, topic)}) == 4_200_000
