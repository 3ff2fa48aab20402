"""Compares Spark sinks on three real brokers.

    python -m benchmarks.spark                     this interpreter's Spark
    python -m benchmarks.spark --jvm               with Spark's own Kafka sink: Spark 4.0.0, whose
                                                   connector jars Maven fetches
    python -m benchmarks.spark --rows 1000000 --masters 'local[1]'

The output is a Markdown table. There is one application per master, in which the sinks alternate.
At the end, the audit reader reads a million rows. On a machine that is not idle, compare the CPU
time per row of Spark, of its Python workers and of the brokers. The topic has three partitions and
one replica.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from aiokprod.testing.kafka_artifacts import cache_root
from aiokprod.testing.kafka_cluster import KafkaCluster
from benchmarks.spark.session import cores

ROOT = Path(__file__).parents[2]
CONNECTOR = "4.0.0"
ARTIFACTS = (
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", CONNECTOR),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", CONNECTOR),
    ("org.apache.kafka", "kafka-clients", "3.9.1"),
    ("org.apache.commons", "commons-pool2", "2.12.0"),
)
FORGETFUL = {
    "auto.create.topics.enable": "true",
    "log.retention.bytes": str(128 * 1024 * 1024),
    "log.segment.bytes": str(64 * 1024 * 1024),
    "log.retention.check.interval.ms": "5000",
    "file.delete.delay.ms": "1000",
}
"""Settings of the brokers. They delete records before the system writes them to the disk."""
_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
_POM = """<project><modelVersion>4.0.0</modelVersion><groupId>aiokprod.bench</groupId>
<artifactId>connector</artifactId><version>1</version><dependencies>{}</dependencies></project>"""
_DEPENDENCY = (
    "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>"
    "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion>"
    "</exclusions></dependency>"
)


def connector_jars() -> str:
    """Return the paths of the jars of Spark's Kafka connector and its dependencies, separated by
    commas. The jars are downloaded once."""
    target = cache_root().parent / f"spark-connector-{CONNECTOR}"
    if not target.is_dir():
        maven = shutil.which("mvn")
        if maven is None:
            sys.exit("Maven (mvn), which fetches Spark's Kafka connector, is not installed")
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            pom = Path(scratch) / "pom.xml"
            pom.write_text(_POM.format("".join(_DEPENDENCY.format(*one) for one in ARTIFACTS)))
            jars = Path(scratch) / "jars"
            command = [maven, "-B", "-q", "-f", str(pom), _COPY, f"-DoutputDirectory={jars}"]
            subprocess.run(command, check=True, stdin=subprocess.DEVNULL, timeout=600)
            jars.rename(target)
    return ",".join(str(jar) for jar in sorted(target.glob("*.jar")))


def run(servers: str, master: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Run all sinks on one master and return the figures."""
    command = [sys.executable, "-m", "benchmarks.spark.session", "--servers", servers]
    command += ["--master", master, "--rows", str(arguments.rows), "--runs", str(arguments.runs)]
    command += ["--batches", str(arguments.batches if master == arguments.masters[-1] else 0)]
    if arguments.jvm:
        command += ["--jars", connector_jars()]
    if arguments.only:
        command += ["--only", *arguments.only]
    environment = dict(os.environ, PYTHONPATH=str(ROOT))
    done = subprocess.run(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def table(results: list[dict[str, Any]]) -> str:
    """Return the figures as a Markdown table."""
    lines = []
    for result in results:
        lines += [
            f"Spark {result['spark']}, `{result['master']}`",
            "",
            "| sink | k rows/s (slowest to fastest) | CPU µs/row: Python | JVM | brokers | all "
            "| worker MiB |",
            "|---|---|---|---|---|---|---|",
        ]
        lines += [
            f"| {name} | {one['rows_per_s'] / 1e3:,.0f} "
            f"({one['slowest'] / 1e3:,.0f} to {one['fastest'] / 1e3:,.0f}) "
            f"| {one['python_us_per_row']:.2f} | {one['jvm_us_per_row']:.2f} "
            f"| {one['brokers_us_per_row']:.2f} "
            f"| {sum(one[f'{place}_us_per_row'] for place in ('python', 'jvm', 'brokers')):.2f} "
            f"| {one['worker_mib']:.0f} |"
            for name, one in result["sinks"].items()
        ]
        lines.append("")
        if "micro_batch_ms" in result:
            lines += ["| micro-batch of 1000 rows, 2 tasks | ms |", "|---|---|"]
            lines += [f"| {name} | {ms:.0f} |" for name, ms in result["micro_batch_ms"].items()]
            lines.append("")
        lines += [
            f"`aiokprod-audit` reads back {result['audit_rows_per_s_core'] / 1e3:,.0f} k rows/s "
            "and core.",
            "",
        ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Spark sinks on three real brokers.")
    parser.add_argument("--masters", nargs="+", default=["local[1]", "local[2]"])
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--batches", type=int, default=60)
    parser.add_argument("--jvm", action="store_true", help="with Spark's own Kafka sink")
    parser.add_argument("--only", nargs="*", help="these sinks")
    arguments = parser.parse_args()
    cluster = KafkaCluster(3, config=FORGETFUL)
    cluster.start_blocking()
    try:
        import asyncio

        audits = [f"bench-audit-{cores(master)}" for master in arguments.masters]
        for topic in ("bench", "bench-stream", *audits):
            asyncio.run(cluster.create_topic(topic, partitions=3, replication_factor=1))
        results = [
            run(cluster.bootstrap_servers, master, arguments) for master in arguments.masters
        ]
    finally:
        cluster.stop_blocking()
    print(table(results))


if __name__ == "__main__":
    main()
