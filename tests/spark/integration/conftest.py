"""Fixtures of the acceptance checks with real Spark and real brokers.

The checks have the numbers of the sink's acceptance list. The name of a test begins with its
number. `AIOKPROD_SPARK_MASTER` selects another master than local[2]: "standalone" starts a cluster
of two workers for the run, and a URL refers to a running cluster.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from aiokprod.testing.kafka_cluster import KafkaCluster

ROOT = Path(__file__).parents[3]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.integration)
            # Spark, py4j and pandas issue warnings. Warnings of our code are errors in other tests.
            item.add_marker(pytest.mark.filterwarnings("default"))


class RunningBroker(KafkaCluster):
    """A broker that already runs, for quick iterations during work on the sink. Tests can query it
    and create topics, but cannot kill or pause it."""

    def __init__(self, servers: str) -> None:
        super().__init__(1)
        self._servers = servers

    @property
    def bootstrap_servers(self) -> str:
        return self._servers


@pytest.fixture(autouse=True)
def no_task_left() -> Iterator[None]:
    """Remove the task context that tests leave when they act as a worker. Spark starts only without
    such a context."""
    yield
    from pyspark import TaskContext

    TaskContext._taskContext = None


@pytest.fixture(scope="session")
def broker() -> Iterator[KafkaCluster]:
    """Start one real broker of the newest release line, or use the one named by
    `AIOKPROD_SPARK_BROKER`."""
    running = os.environ.get("AIOKPROD_SPARK_BROKER")
    if running:
        yield RunningBroker(running)
        return
    # No retention: some rows are older than a week, and a slow test would find them deleted.
    cluster = KafkaCluster(1, config={"log.retention.ms": "-1"})
    cluster.start_blocking()
    try:
        yield cluster
    finally:
        cluster.stop_blocking()


@pytest.fixture(autouse=True, scope="session")
def master() -> Iterator[None]:
    """Start the standalone cluster if it is selected. Subprocesses of the tests use it, too."""
    if os.environ.get("AIOKPROD_SPARK_MASTER") != "standalone":
        yield
        return
    from tests.spark.integration.standalone import standalone

    with standalone() as url:
        os.environ["AIOKPROD_SPARK_MASTER"] = url
        yield


def session_of(**conf: str) -> Any:
    """Return a classic session with the package on the workers' path."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    paths = [str(ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    builder = (
        SparkSession.builder.master(os.environ.get("AIOKPROD_SPARK_MASTER", "local[2,2]"))
        .appName("aiokprod-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.executor.memory", "1g")
        .config("spark.cores.max", "2")  # on a cluster, leaves room for another application
        .config("spark.task.maxFailures", "2")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.log.level", "ERROR")
        .config("spark.executorEnv.PYTHONPATH", os.environ["PYTHONPATH"])
        .config("spark.sql.pyspark.udf.tracebackWithLocals.enabled", "true")
        .config("spark.sql.session.timeZone", "UTC")
    )
    for key, value in conf.items():
        builder = builder.config(key.replace("__", "."), value)
    return builder.getOrCreate()


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    session = session_of()
    yield session
    session.stop()


@pytest.fixture
def topic() -> str:
    """Return a topic name that is not in use yet."""
    return f"s-{uuid.uuid4().hex[:10]}"


@pytest.fixture
def folder() -> Iterator[Path]:
    """Create an empty folder for checkpoints and reports."""
    path = Path(tempfile.mkdtemp(prefix="aiokprod-spark-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def make_topic(broker: KafkaCluster) -> Callable[..., None]:
    """Return a function that creates a topic and waits until it can be written to."""
    import asyncio

    def make(name: str, partitions: int = 3, **configs: str) -> None:
        settings = {key.replace("__", "."): value for key, value in configs.items()}
        asyncio.run(broker.create_topic(name, partitions, configs=settings))

    return make
