"""A Spark application that runs the sinks alternately on one master and prints figures as JSON.

`benchmarks.spark.__main__` starts it with the interpreter of the measured Spark version.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

KEY_BYTES, VALUE_BYTES = 16, 100
AUDIT_ROWS = 1_000_000
SLOW_SINKS = {"confluent": 8}
"""Divisor of the number of rows for each slow sink."""
BEST_JVM = {"kafka.batch.size": "131072", "kafka.linger.ms": "5"}


_PLACES = ("jvm", "python", "brokers")
"""The places where CPU time is measured: Spark's JVM, its Python processes, and the brokers."""


def usage() -> tuple[dict[str, float], int]:
    """Return the CPU seconds so far by place, and the largest RSS of a Python worker in bytes. They
    cover all descendants of the parent process, which also started the brokers.

    CPU time shows the cost of a sink even on a machine that is not idle.
    """
    tick, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    parents: dict[int, int] = {}
    found: dict[int, tuple[str, float, int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes()
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            resident = int((entry / "statm").read_text().split()[1]) * page
        except (OSError, IndexError, ValueError):
            continue  # the process has just ended
        parents[int(entry.name)] = int(fields[1])
        own, ended = sum(map(int, fields[11:13])) / tick, sum(map(int, fields[13:15])) / tick
        if b"kafka.Kafka\0" in words:
            found[int(entry.name)] = "brokers", own, 0
        elif b"org.apache.spark.deploy" in words:
            found[int(entry.name)] = "jvm", own, 0
        elif b"pyspark" in words:  # including its children that have ended
            found[int(entry.name)] = "python", own + ended, resident
    top = os.getppid()
    seconds = dict.fromkeys(_PLACES, 0.0)
    largest = 0
    for pid, (place, used, resident) in found.items():
        if pid != os.getpid() and _is_below(pid, top, parents):
            seconds[place] += used
            largest = max(largest, resident)
    return seconds, largest


def _is_below(pid: int, top: int, parents: dict[int, int]) -> bool:
    while pid in parents:
        pid = parents[pid]
        if pid == top:
            return True
    return False


def cores(master: str) -> int:
    """Return the number of cores in `local[…]`."""
    number = master.partition("[")[2].rstrip("]")
    if not number.isdigit():
        sys.exit(f"--masters: {master!r} does not say how many cores; use local[1], local[2], …")
    return int(number)


class Bench:
    """Measures all sinks in one session."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        from pyspark.sql import SparkSession

        self.servers: str = arguments.servers
        self.rows: int = arguments.rows
        self.cores = cores(arguments.master)
        builder = (
            SparkSession.builder.master(arguments.master)
            .config("spark.ui.enabled", "false")
            .config("spark.driver.memory", "4g")
            .config("spark.log.level", "ERROR")
        )
        if arguments.jars:
            builder = builder.config("spark.jars", arguments.jars)
        self.spark: Any = builder.getOrCreate()
        from aiokprod.spark import register
        from benchmarks.spark.sinks import EncodeSource, NullSource

        register(self.spark)
        for source in (NullSource, EncodeSource):
            self.spark.dataSource.register(source)
        self.sinks: dict[str, Callable[[Any, str], None]] = {
            "noop": lambda frame, topic: frame.write.format("noop").mode("append").save(),
            "null-arrow": self._python("null-arrow"),
            "encode-only": self._python("encode-only"),
            "aiokprod": self._kafka("aiokprod"),
            "jvm": self._kafka("kafka"),
            "jvm-best": self._kafka("kafka", **BEST_JVM),
            "confluent": self._confluent,
        }
        if not arguments.jars:
            del self.sinks["jvm"], self.sinks["jvm-best"]
        if arguments.only:
            self.sinks = {name: self.sinks[name] for name in arguments.only if name in self.sinks}

    @staticmethod
    def _python(name: str) -> Callable[[Any, str], None]:
        return lambda frame, topic: frame.write.format(name).mode("append").save()

    def _kafka(self, name: str, **options: str) -> Callable[[Any, str], None]:
        def save(frame: Any, topic: str) -> None:
            writer = frame.write.format(name).mode("append").options(**options)
            writer.option("kafka.bootstrap.servers", self.servers).option("topic", topic).save()

        return save

    def _confluent(self, frame: Any, topic: str) -> None:
        servers = self.servers

        def send(rows: Any) -> None:
            from confluent_kafka import Producer

            producer = Producer(
                {"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 5,
                 "batch.size": 131072, "queue.buffering.max.messages": 1_000_000}
            )  # fmt: skip
            for row in rows:
                while True:
                    try:
                        producer.produce(topic, bytes(row.value), bytes(row.key))
                        break
                    except BufferError:
                        producer.poll(0.05)
            assert producer.flush(120) == 0

        frame.rdd.foreachPartition(send)

    def frame(self, rows: int) -> Any:
        """Return `rows` rows with a 16-byte key and a 100-byte value, in one task per core."""
        return self.spark.range(0, rows, 1, self.cores).selectExpr(
            f"cast(lpad(cast(id as string), {KEY_BYTES}, '0') as binary) as key",
            f"cast(rpad(cast(id as string), {VALUE_BYTES}, 'x') as binary) as value",
        )

    def throughput(self, runs: int) -> dict[str, dict[str, float]]:
        """Return medians by sink: rows/s, CPU µs per row by place, and the largest worker."""
        figures: dict[str, list[tuple[float, dict[str, float], int]]] = {
            name: [] for name in self.sinks
        }
        for turn in range(runs + 1):
            for name, save in self.sinks.items():
                rows = self.rows // SLOW_SINKS.get(name, 1)
                before = usage()[0]
                started = time.perf_counter()
                save(self.frame(rows), "bench")
                took = time.perf_counter() - started
                after, largest = usage()
                spent = {place: (after[place] - before[place]) * 1e6 / rows for place in _PLACES}
                if turn:  # the first turn is the warm-up
                    figures[name].append((rows / took, spent, largest))
                print(
                    f"{name} {rows / took:,.0f} rows/s, CPU µs/row {sum(spent.values()):.2f}",
                    file=sys.stderr, flush=True,
                )  # fmt: skip
        return {
            name: {
                "rows_per_s": statistics.median(one[0] for one in found),
                "slowest": min(one[0] for one in found),
                "fastest": max(one[0] for one in found),
                "worker_mib": max(one[2] for one in found) / 2**20,
            }
            | {
                f"{place}_us_per_row": statistics.median(one[1][place] for one in found)
                for place in _PLACES
            }
            for name, found in figures.items()
        }

    def micro_batches(self, batches: int) -> dict[str, float]:
        """Return the median duration of a micro-batch of 1000 rows in 2 tasks, ms, by sink."""
        found = {}
        options = {"kafka.bootstrap.servers": self.servers, "topic": "bench-stream"}
        once = {"delivery": "exactly_once", "transactionalIdPrefix": "bench"}
        for name, form, more in (
            ("noop", "noop", {}),
            ("null-arrow", "null-arrow", {}),
            ("aiokprod", "aiokprod", options),
            ("aiokprod exactly once", "aiokprod", options | once),
        ):
            found[name] = self._micro(form, more, batches)
        return found

    def _micro(self, form: str, options: dict[str, str], batches: int) -> float:
        source = self.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1000)
        frame = source.option("numPartitions", 2).load().selectExpr(
            "cast(value as string) as key", "cast(value as string) as value")  # fmt: skip
        with tempfile.TemporaryDirectory() as folder:
            query = (
                frame.writeStream.format(form)
                .options(**options)
                .option("checkpointLocation", folder)
                .trigger(processingTime="0 seconds")
                .start()
            )
            while query.isActive and len(query.recentProgress) < batches:
                time.sleep(0.1)
            assert query.exception() is None, query.exception()
            progress = query.recentProgress[batches // 3 :]
            query.stop()
        return float(statistics.median(one["durationMs"]["triggerExecution"] for one in progress))

    def audit(self, runs: int) -> float:
        """Return the median rate of the audit reader, in rows per second and core. It reads all
        columns, and the lengths of the values are summed."""
        from pyspark.sql import functions as f

        from aiokprod.spark.audit_jobs import read_log

        topic = f"bench-audit-{self.cores}"
        self._kafka("aiokprod")(self.frame(AUDIT_ROWS), topic)
        options = {"kafka.bootstrap.servers": self.servers, "topic": topic}
        rates = []
        for _ in range(runs + 1):
            started = time.perf_counter()
            total = read_log(self.spark, options).select(f.sum(f.length("value"))).first()[0]
            rates.append(AUDIT_ROWS / (time.perf_counter() - started) / self.cores)
            assert total == AUDIT_ROWS * VALUE_BYTES, total
        return statistics.median(rates[1:])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--servers", required=True)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--batches", type=int, default=0)
    parser.add_argument("--jars", default="")
    parser.add_argument("--only", nargs="*")
    arguments = parser.parse_args()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    import pyspark

    bench = Bench(arguments)
    result: dict[str, Any] = {"spark": pyspark.__version__, "master": arguments.master}
    result["sinks"] = bench.throughput(arguments.runs)
    if arguments.batches:
        result["micro_batch_ms"] = bench.micro_batches(arguments.batches)
    result["audit_rows_per_s_core"] = bench.audit(arguments.runs)
    bench.spark.stop()
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
