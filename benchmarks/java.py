"""The Java producer, from the same jars as the brokers. It runs Kafka's benchmark
`ProducerPerformance`, or `ProduceRate.java` for serializers, callbacks, partitioners and
interceptors, which `ProducerPerformance` does not support."""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Final

from benchmarks.case import Case, is_way
from benchmarks.payloads import Payloads

TIMEOUT: Final = 300.0
_TOOL: Final = "org.apache.kafka.tools.ProducerPerformance"
_WAYS: Final = Path(__file__).with_name("ProduceRate.java")
_SETTINGS: Final = {
    "java": {"batch.size": "131072", "linger.ms": "5"},
    "java-default": {},
}
_LINE: Final = re.compile(r"(\d+)(?: steady state)? records sent, ([\d.]+) records/sec")


def measure(
    servers: str, topic: str, case: Case, payloads: Payloads, warm_up: int
) -> dict[str, Any]:
    """Run one of the two programs, and return the rate that it reports for the records after the
    warm-up.

    Raises RuntimeError with the program's output if it failed, MissingTool without Java.
    """
    settings = _SETTINGS[case.client] | {
        "acks": case.acks,
        "enable.idempotence": str(case.idempotent).lower(),
        "compression.type": case.codec,
    }
    if is_way(case):
        return _measure_way(servers, topic, case, payloads, warm_up, settings)
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "values.txt"
        file.write_bytes(b"\n".join(payloads.values) + b"\n")
        done = subprocess.run(
            [
                *_java(_TOOL),
                "--bootstrap-server", servers,
                "--topic", topic,
                "--num-records", str(case.records + warm_up),
                "--warmup-records", str(warm_up),
                "--payload-file", str(file),
                "--throughput", "-1",
                "--command-property", *(f"{name}={value}" for name, value in settings.items()),
            ],
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    if done.returncode != 0:
        raise RuntimeError(f"{_TOOL} failed:\n{(done.stdout + done.stderr)[-3000:]}")
    count, seconds = parse(done.stdout)
    return {"count": count, "seconds": seconds}


def _measure_way(
    servers: str,
    topic: str,
    case: Case,
    payloads: Payloads,
    warm_up: int,
    settings: dict[str, str],
) -> dict[str, Any]:
    job = {
        "topic": topic,
        "settings": settings | {"bootstrap.servers": servers},
        "values": [v.decode() if isinstance(v, bytes) else v for v in payloads.values],
        "serializer": case.serializer,
        "callback": case.settle == "callback",
        "partitioner": case.partitioner,
        "hook": case.hook,
        "records": case.records,
        "warm_up": warm_up,
    }
    done = subprocess.run(
        _java(str(_WAYS)), input=json.dumps(job), capture_output=True, text=True, timeout=TIMEOUT
    )
    if done.returncode != 0:
        raise RuntimeError(f"{_WAYS.name} failed:\n{(done.stdout + done.stderr)[-3000:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def parse(output: str) -> tuple[int, float]:
    """Return the records and the seconds of the last summary, which excludes the warm-up."""
    lines = [line for line in output.splitlines() if "steady state" in line or "50th" in line]
    found = _LINE.search(lines[-1]) if lines else None
    if found is None:
        raise RuntimeError(f"no summary in the output of {_TOOL}:\n{output[-2000:]}")
    count = int(found.group(1))
    return count, count / float(found.group(2))


def _java(program: str) -> list[str]:
    from aiokprod.testing.kafka_artifacts import KAFKA_4, MissingTool, class_path, find_java

    java = find_java()
    if java is None:
        raise MissingTool("the Java producer needs a JDK of version 17 or newer")
    return [
        java, "-Xms512m", "-Xmx512m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
        "-cp", class_path(KAFKA_4), program,
    ]  # fmt: skip
