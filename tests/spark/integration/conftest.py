"""Fixtures of the acceptance checks with real Spark and real brokers.

The checks are numbered as in the acceptance list of the sink; a test's name begins with its
number. `AIOKPROD_SPARK_MASTER` runs them on another master than local[2]: "standalone" is a cluster
of two workers that is started for the run; a URL is that of a running one.
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
            # Spark, py4j and pandas issue warnings; warnings of our code are errors in other tests.
            item.add_marker(pytest.mark.filterwarnings("default"))


class RunningBroker(KafkaCluster):
    """A broker that runs already, for quick turns while working on the sink: it can be asked and
    given topics, not killed or paused."""

    def __init__(self, servers: str) -> None:
        super().__init__(1)
        self._servers = servers

    @property
    def bootstrap_servers(self) -> str:
        return self._servers


@pytest.fixture(autouse=True)
def no_task_left() -> Iterator[None]:
    """Tests that play a worker leave its task's context behind; Spark starts only without."""
    yield
    from pyspark import TaskContext

    TaskContext._taskContext = None


@pytest.fixture(scope="session")
def broker() -> Iterator[KafkaCluster]:
    """One real broker of the newest line, or the one that `AIOKPROD_SPARK_BROKER` names."""
    running = os.environ.get("AIOKPROD_SPARK_BROKER")
    if running:
        yield RunningBroker(running)
        return
    # No retention: some rows are older than a week, so a slow test would find them deleted.
    cluster = KafkaCluster(1, config={"log.retention.ms": "-1"})
    cluster.start_blocking()
    try:
        yield cluster
    finally:
        cluster.stop_blocking()


@pytest.fixture(autouse=True, scope="session")
def master() -> Iterator[None]:
    """The standalone cluster, if it is asked for; subprocesses of the tests find it too."""
    if os.environ.get("AIOKPROD_SPARK_MASTER") != "standalone":
        yield
        return
    from tests.spark.integration.standalone import standalone

    with standalone() as url:
        os.environ["AIOKPROD_SPARK_MASTER"] = url
        yield


def session_of(**conf: str) -> Any:
    """A classic session with the package on the workers' path."""
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
        .config("spark.cores.max", "2")  # of a cluster; leaves room for another application
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
    """A name that is not used yet."""
    return f"s-{uuid.uuid4().hex[:10]}"


@pytest.fixture
def folder() -> Iterator[Path]:
    """An empty folder, for checkpoints and reports."""
    path = Path(tempfile.mkdtemp(prefix="aiokprod-spark-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def make_topic(broker: KafkaCluster) -> Callable[..., None]:
    """Creates a topic and waits until it can be written to."""
    import asyncio

    def make(name: str, partitions: int = 3, **configs: str) -> None:
        settings = {key.replace("__", "."): value for key, value in configs.items()}
        asyncio.run(broker.create_topic(name, partitions, configs=settings))

    return make
