"""`Case`: the description of one measurement, and the command-line options that define it.

A case describes the records, the client and the kind of cluster. It is passed as JSON to the worker
process and stored in the results. Brokers and clients appear only by name.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

SCENARIOS: Final = {
    "fire": "submit every record without waiting, then await every handle",
    "await": "each task awaits the acknowledgment of a record before it sends the next",
    "bulk": "whole columns at a time",
    "columns": "Arrow tables at a time",
    "paced": "requests arrive at a fixed rate, each in a separate task",
}
CLIENTS: Final = {
    "aiokprod": "aiokprod at its defaults",
    "aiokprod-asis": "aiokprod with adaptive_linger off (Java's rule)",
    "aiokafka": "aiokafka at its default batch size (16 KiB) and linger (0)",
    "aiokafka-tuned": "aiokafka with aiokprod's batch size (128 KiB) and linger (5 ms)",
    "confluent": "confluent-kafka Producer with a delivery callback for every record",
    "confluent-silent": "confluent-kafka Producer without callbacks",
    "confluent-aio": "confluent-kafka AIOProducer at its defaults",
    "confluent-aio-tuned": "AIOProducer with batches of 64 records that wait 10 ms at most",
    "java": "Java ProducerPerformance, batch 128 KiB, linger 5 ms",
    "java-default": "Java ProducerPerformance at its defaults (batch 16 KiB, linger 5 ms)",
    "franz-go": "franz-go (Go), batch 128 KiB, linger 5 ms, a promise for every record",
    "blaster": "prebuilt batches over bare sockets: the ceiling",
    "round-trip": "one record after the other on a bare socket: the floor of a latency",
}
CLUSTERS: Final = ("mock", "kafka")
CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")  # in the order of Kafka's codec ids
SETTLING: Final = ("each", "gather", "flush", "callback", "on_delivery")
BY_FUNCTION: Final = ("callback", "on_delivery")
SERIALIZERS: Final = ("none", "text", "json", "orjson")
PARTITIONERS: Final = ("default", "callable", "round-robin", "consistent-random")
HOOKS: Final = ("none", "interceptor", "plugin")
BUFFERS: Final = ("bytes", "bytearray", "memoryview")

_LIMITS: Final = {
    "records": (1, 1_000_000_000),
    "tasks": (1, 100_000),
    "size": (10, 1_000_000),
    "headers": (0, 100),
    "partitions": (1, 10_000),
    "topics": (1, 20_000),
    "replicas": (1, 3),
    "rate": (1, 1_000_000),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """The description of one measurement.

    Attributes:
        records: maximum number of records, without the warm-up. Fewer records are sent if
            `seconds` is exceeded first.
        seconds: time limit for sending, s. The outcomes of the sent records are always awaited.
        tasks: number of asyncio tasks that share the records.
        size: size of a value in bytes, 10 to 1 000 000.
        keyed: True if records have keys of 16 bytes, with 10 000 different keys.
        headers: number of headers of a record, 8 + 16 bytes each.
        partitions: number of partitions of the topic.
        topics: number of topics in the cluster, including the topic that is used.
        replicas: number of replicas of each partition. 3 means min.insync.replicas=2.
        settle: how the outcomes of "fire" are awaited: each handle, all by `gather`, only by
            `flush`, by a done callback of every handle, or by a function that is passed to the call
            (`on_delivery`). For confluent-kafka and Java, "callback" is such a function.
        serializer: the client's value serializer: none (the values are bytes), a lambda that
            encodes str, or a lambda that calls `json.dumps` or `orjson.dumps` with a dict. Java:
            StringSerializer, or Jackson with a map.
        partitioner: "default" is the client's default, "callable" is a function that returns 0.
        hook: an interceptor or a plug-in that does nothing.
        buffer: the type of values that are bytes.
        timeout: timeout of each `send` of "await", s. 0 means no timeout. Clients without such an
            argument use `asyncio.wait_for`.
        rate: records per second of the scenario "paced".
        loop: "uvloop" or "asyncio".
    """

    scenario: str = "fire"
    client: str = "aiokprod"
    cluster: str = "mock"
    records: int = 1_000_000
    seconds: float = 1.0
    tasks: int = 1
    size: int = 100
    keyed: bool = False
    headers: int = 0
    codec: str = "none"
    idempotent: bool = True
    acks: str = "all"
    partitions: int = 3
    topics: int = 1
    replicas: int = 1
    settle: str = "each"
    serializer: str = "none"
    partitioner: str = "default"
    hook: str = "none"
    buffer: str = "bytes"
    timeout: float = 0.0
    rate: int = 1000
    loop: str = "uvloop"

    def __post_init__(self) -> None:
        choices = {
            "scenario": tuple(SCENARIOS),
            "client": tuple(CLIENTS),
            "cluster": CLUSTERS,
            "codec": CODECS,
            "acks": ("0", "1", "all"),
            "settle": SETTLING,
            "serializer": SERIALIZERS,
            "partitioner": PARTITIONERS,
            "hook": HOOKS,
            "buffer": BUFFERS,
            "loop": ("uvloop", "asyncio"),
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name}={getattr(self, name)!r}: choose one of {allowed}")
        for name, (low, high) in _LIMITS.items():
            if not low <= getattr(self, name) <= high:
                raise ValueError(f"{name}={getattr(self, name)}: allowed are {low} to {high}")
        if not 0 < self.seconds <= 600:
            raise ValueError(f"seconds={self.seconds}: allowed are 0 to 600")
        if not 0 <= self.timeout <= 600:
            raise ValueError(f"timeout={self.timeout}: allowed are 0 (none) to 600")
        if self.idempotent and self.acks != "all":
            raise ValueError(f"acks={self.acks}: needs idempotent=False")
        reason = unable(self)
        if reason:
            raise ValueError(f"{self.client} cannot do this case: {reason}")

    def with_(self, **changes: Any) -> Case:
        return dataclasses.replace(self, **changes)

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


_SCENARIOS_OF: Final = {
    "aiokprod": ("fire", "await", "bulk", "columns", "paced"),
    "aiokprod-asis": ("fire", "await", "bulk", "columns", "paced"),
    "aiokafka": ("fire", "await", "bulk", "paced"),
    "aiokafka-tuned": ("fire", "await", "bulk", "paced"),
    "confluent": ("fire", "bulk"),
    "confluent-silent": ("fire",),
    "confluent-aio": ("fire", "await", "paced"),
    "confluent-aio-tuned": ("fire", "await", "paced"),
    "java": ("fire", "bulk"),
    "java-default": ("fire",),
    "franz-go": ("fire",),
    "blaster": ("fire", "bulk", "columns"),
    "round-trip": ("await",),
}


_WITH_CALLBACKS: Final = ("aiokprod", "aiokafka", "aiokafka-tuned", "confluent", "java")
_OF_HOOK: Final = {"interceptor": ("aiokprod", "java"), "plugin": ("aiokprod",)}
_OF_PARTITIONER: Final = {
    "callable": ("aiokprod", "aiokafka", "java"),
    "round-robin": ("aiokprod", "java"),
    "consistent-random": ("aiokprod", "confluent"),
}


def is_way(case: Case) -> bool:
    """Return True if the client calls the user's objects for each record."""
    return (
        case.serializer != "none"
        or case.partitioner != "default"
        or case.hook != "none"
        or case.settle in BY_FUNCTION
    )


def unable(case: Case) -> str:
    """Return why this client cannot run this case, or an empty string if it can."""
    if case.scenario not in _SCENARIOS_OF[case.client]:
        return f"its scenarios are {', '.join(_SCENARIOS_OF[case.client])}"
    family = case.client.split("-")[0]
    if family in ("java", "blaster") and (case.keyed or case.headers):
        return "it sends values only"
    if family in ("blaster", "round") and case.acks == "0":
        return "it waits for answers"
    if case.client == "franz-go" and case.cluster == "mock":
        return "it cannot read the mock cluster's answer to ApiVersions v5: use kafka"
    if case.acks == "0" and case.cluster == "mock":
        return "librdkafka's mock cluster answers requests that want no answer: use kafka"
    if family in ("franz", "blaster", "round") and case.serializer != "none":
        return "it sends bytes"
    if case.client == "java-default" and is_way(case):
        return "its ways are measured with the settings of java"
    if family == "java" and case.serializer == "orjson":
        return "it has json"
    if family not in _OF_PARTITIONER.get(case.partitioner, (family,)):
        return (
            f"{case.partitioner} is a partitioner of {', '.join(_OF_PARTITIONER[case.partitioner])}"
        )
    if family not in _OF_HOOK.get(case.hook, (family,)):
        return f"{case.hook} is a hook of {', '.join(_OF_HOOK[case.hook])}"
    if case.buffer != "bytes" and family not in ("aiokprod", "aiokafka"):
        return "it takes bytes only"
    if case.buffer != "bytes" and case.serializer != "none":
        return "its values are those of the serializer"
    if case.timeout and case.scenario != "await":
        return "a timeout is one of the scenario await"
    if case.timeout and family not in ("aiokprod", "aiokafka"):
        return "timeouts are measured with aiokprod, aiokafka"
    if case.settle == "on_delivery" and case.client != "aiokprod":
        return "its function of the call is `callback`"
    if case.scenario in ("bulk", "columns") and case.serializer != "none":
        return "bulk calls with serializers are measured by `python -m benchmarks.bulk`"
    if case.client.startswith("confluent-aio") and case.serializer != "none":
        return "AIOProducer has no serializers"
    if case.settle == "callback" and case.client not in _WITH_CALLBACKS:
        return f"callbacks are measured with {', '.join(_WITH_CALLBACKS)}"
    if case.settle in BY_FUNCTION and (case.keyed or case.headers or case.tasks > 1):
        return "callbacks are measured with values only, and one task"
    if case.client == "round-trip" and (case.tasks > 1 or case.codec != "none"):
        return "it sends one plain record after the other"
    if case.client.startswith("confluent-aio") and case.headers:
        return "AIOProducer refuses headers in batches"
    plain = not case.keyed and not case.headers
    if case.scenario == "bulk" and case.client == "confluent" and not plain:
        return "its produce_batch is measured with values only"
    if case.scenario == "columns" and case.headers:
        return "its tables have no headers"
    return ""


def add_options(parser: argparse.ArgumentParser, skip: Iterable[str] = ()) -> None:
    """Add an option for each field of `Case`, with its default."""
    for field in dataclasses.fields(Case):
        if field.name in skip:
            continue
        option = "--" + field.name
        if isinstance(field.default, bool):
            parser.add_argument(
                option, action=argparse.BooleanOptionalAction, default=field.default
            )
        else:
            kind = type(field.default)
            parser.add_argument(option, type=kind, default=field.default, help="%(default)s")


def from_options(chosen: argparse.Namespace, **fixed: Any) -> Case:
    """Return the case for parsed options. Raises ValueError with the field, value and fix."""
    names = {field.name for field in dataclasses.fields(Case)}
    values = {name: value for name, value in vars(chosen).items() if name in names}
    return Case(**(values | fixed))
