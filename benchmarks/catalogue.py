"""The measurements of `make bench`: groups of cases by cluster, each for one target.

With these sizes, the groups of the mock cluster and of the real cluster take about a quarter of an
hour each on two cores. `full` adds more points to every curve.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from benchmarks.case import CODECS, Case
from benchmarks.runner import Group

MAIN_RUNS: Final = 5
CURVE_RUNS: Final = 3

# The time limit ends the runs of slow clients. The numbers of records end the runs of fast clients
# before their handles need too much memory.
FIRE: Final = Case(scenario="fire", records=2_000_000)
AWAIT: Final = Case(scenario="await", tasks=64, records=1_000_000)
BULK: Final = Case(scenario="bulk", records=20_000_000)
JAVA_RECORDS: Final = {1: 1_000_000, 3: 500_000}

FIRE_CLIENTS: Final = (
    "aiokprod",
    "aiokafka",
    "aiokafka-tuned",
    "confluent-aio",
    "confluent",
    "confluent-silent",
    "java",
    "java-default",
    "franz-go",
    "blaster",
)
AWAIT_CLIENTS: Final = (
    "aiokprod",
    "aiokafka",
    "aiokafka-tuned",
    "confluent-aio",
    "confluent-aio-tuned",
)
BULK_CLIENTS: Final = ("aiokprod", "aiokafka-tuned", "confluent", "blaster")


def by_client(base: Case, clients: tuple[str, ...], **changes: Any) -> dict[str, Case]:
    """Return one case for each client. Java and Go run only on real brokers."""
    cases = {}
    for client in clients:
        more = dict(changes)
        if client.startswith(("java", "franz")) and base.cluster == "mock":
            continue
        if client.startswith("java"):
            more["records"] = JAVA_RECORDS[base.replicas] * 100 // max(100, base.size)
        cases[client] = base.with_(client=client, **more)
    return cases


def groups(cluster: str, full: bool = False) -> list[Group]:
    """Return the groups of "mock" or "kafka", in the order of their runs."""
    return _mock(full) if cluster == "mock" else _kafka(full)


def _mock(full: bool) -> list[Group]:
    return [
        Group("fire", "Submit, then await every handle", by_client(FIRE, FIRE_CLIENTS), MAIN_RUNS),
        Group("await", "64 tasks await each record", by_client(AWAIT, AWAIT_CLIENTS), MAIN_RUNS),
        Group("lone", "1 task awaits each record", _lone(AWAIT), MAIN_RUNS),
        Group("bulk", "Columns of up to 100 000 records", by_client(BULK, BULK_CLIENTS), MAIN_RUNS),
        Group("columns", "Arrow tables of up to 100 000 rows", _columns(BULK), MAIN_RUNS),
        Group("tasks", "Tasks that submit to one partition", _tasks(full), MAIN_RUNS),
        Group("partitions", "Partitions of the topic", _partitions(full), MAIN_RUNS),
        Group("topics", "Topics in the cluster", _topics((1, 5_000)), MAIN_RUNS),
        Group("sizes", "Bytes of a value", _sizes(FIRE, full), CURVE_RUNS),
        Group("shapes", "Keys and headers", _shapes(FIRE), CURVE_RUNS),
        Group("codecs", "Compression", _codecs(FIRE, CODECS[1:]), CURVE_RUNS),
        Group("acks", "Acknowledgments and idempotence", _acks(FIRE), CURVE_RUNS),
        Group("ways", "Serializers, callbacks, partitioners and hooks", _ways(FIRE), CURVE_RUNS),
        Group(
            "await-ways",
            "64 tasks await each record, with a timeout and with a serializer",
            _awaited_ways(AWAIT),
            CURVE_RUNS,
        ),
        Group("load", "Latency against load", _load(AWAIT, full), 1),
    ]


def _kafka(full: bool) -> list[Group]:
    chosen = []
    for replicas in (1, 3):
        fire, requests, bulk = (
            case.with_(cluster="kafka", replicas=replicas, **more)
            for case, more in ((FIRE, {}), (AWAIT, {}), (BULK, {"records": 6_000_000}))
        )
        end = f", RF {replicas}"
        chosen += [
            Group(f"fire-rf{replicas}", "Submit, then await every handle" + end,
                  by_client(fire, FIRE_CLIENTS), MAIN_RUNS),
            Group(f"await-rf{replicas}", "64 tasks await each record" + end,
                  by_client(requests, AWAIT_CLIENTS), MAIN_RUNS),
            Group(f"lone-rf{replicas}", "1 task awaits each record" + end,
                  _lone(requests), CURVE_RUNS),
            Group(f"bulk-rf{replicas}", "Columns of up to 100 000 records" + end,
                  by_client(bulk, BULK_CLIENTS), MAIN_RUNS),
        ]  # fmt: skip
    three = FIRE.with_(cluster="kafka", replicas=3)
    chosen += [
        Group("codecs-rf3", "Compression, RF 3",
              _codecs(three, ("lz4", "zstd"), java=True), CURVE_RUNS),
        Group("ways-rf1", "Serializers, callbacks, partitioners and hooks, RF 1",
              _ways(FIRE.with_(cluster="kafka"), only="java"), CURVE_RUNS),
        Group("kib-rf3", "Values of 1 KiB, RF 3", _kib(three), CURVE_RUNS),
        Group("load-rf3", "Latency against load, RF 3",
              _load(AWAIT.with_(cluster="kafka", replicas=3), full), 1),
    ]  # fmt: skip
    if full:
        one = FIRE.with_(cluster="kafka")
        chosen += [
            Group("sizes-rf1", "Bytes of a value, RF 1", _sizes(one, full), CURVE_RUNS),
            Group("shapes-rf1", "Keys and headers, RF 1", _shapes(one), CURVE_RUNS),
            Group("acks-rf1", "Acknowledgments, RF 1", _acks(one), CURVE_RUNS),
            Group("topics-rf1", "Topics in the cluster, RF 1",
                  {f"{n:,} topics": one.with_(topics=n) for n in (1, 5_000)}, CURVE_RUNS),
        ]  # fmt: skip
    return chosen


def _lone(base: Case) -> dict[str, Case]:
    alone = base.with_(tasks=1)
    return by_client(alone, ("aiokprod", "aiokafka", "round-trip"))


def _columns(base: Case) -> dict[str, Case]:
    table = base.with_(scenario="columns")
    return {
        "aiokprod": table,
        "aiokprod, keyed": table.with_(keyed=True),
        "aiokprod, send_many": base,
        "aiokprod, send_many, keyed": base.with_(keyed=True),
    }


def _tasks(full: bool) -> dict[str, Case]:
    counts = (1, 10, 100, 1_000, 10_000) if full else (1, 100, 10_000)
    base = FIRE.with_(partitions=1)
    cases = {f"aiokprod, {n:,} tasks": base.with_(tasks=n) for n in counts}
    for n in counts:
        if n <= 1_000:  # with 10 000 tasks, each task wakes all others, and requests time out
            peer = base.with_(client="aiokafka-tuned", tasks=n, records=100_000)
            cases[f"aiokafka-tuned, {n:,} tasks"] = peer
    for n in (1_000, 10_000):
        awaiting = AWAIT.with_(partitions=1, tasks=n)
        cases[f"aiokprod, {n:,} tasks awaiting"] = awaiting
        if n <= 1_000:
            peer = awaiting.with_(client="aiokafka-tuned")
            cases[f"aiokafka-tuned, {n:,} tasks awaiting"] = peer
    return cases


def _partitions(full: bool) -> dict[str, Case]:
    counts = (1, 10, 100, 1_000, 10_000) if full else (10, 100, 1_000, 10_000)
    cases = {f"aiokprod, {n:,} partitions": FIRE.with_(partitions=n) for n in counts}
    for n in (10, 1_000, 10_000):
        keyed = FIRE.with_(partitions=n, keyed=True)
        cases[f"aiokprod, keyed, {n:,} partitions"] = keyed
        if n <= 1_000:
            cases[f"aiokafka-tuned, keyed, {n:,} partitions"] = keyed.with_(client="aiokafka-tuned")
    return cases


def _topics(counts: tuple[int, ...]) -> dict[str, Case]:
    cases = {}
    for n in counts:  # in ascending order, because the cluster keeps the topics
        cases[f"submit, {n:,} topics"] = FIRE.with_(topics=n)
        cases[f"64 tasks, {n:,} topics"] = AWAIT.with_(topics=n)
    return cases


def _sizes(base: Case, full: bool) -> dict[str, Case]:
    sizes = (10, 100, 1_000, 10_000, 100_000)
    clients = ("aiokprod", "aiokafka-tuned", "confluent")
    cases = {}
    for size in sizes:
        for client in (*clients, "blaster") if full else clients:
            cases[f"{client}, {size:,} B"] = base.with_(client=client, size=size)
    return cases


def _shapes(base: Case) -> dict[str, Case]:
    cases = {}
    for name, changes in _SHAPES.items():
        for client in ("aiokprod", "aiokafka-tuned", "confluent"):
            cases[f"{client}, {name}"] = base.with_(client=client, **changes)
    return cases


_SHAPES: Final[Mapping[str, Mapping[str, Any]]] = {
    "plain": {},
    "keyed": {"keyed": True},
    "3 headers": {"headers": 3},
}


def _codecs(base: Case, codecs: tuple[str, ...], java: bool = False) -> dict[str, Case]:
    clients = ("aiokprod", "aiokafka-tuned", "confluent", *(("java",) if java else ()))
    cases = {}
    for codec in codecs:
        for client, case in by_client(base, clients).items():
            cases[f"{client}, {codec}"] = case.with_(codec=codec)
    return cases


def _acks(base: Case) -> dict[str, Case]:
    cases = {
        "acks=all, idempotent": base,
        "acks=all": base.with_(idempotent=False),
        "acks=1": base.with_(idempotent=False, acks="1"),
    }
    if base.cluster == "kafka":
        cases["acks=0"] = base.with_(idempotent=False, acks="0")
    return cases


def _ways(base: Case, only: str = "") -> dict[str, Case]:
    """Return a case for each way in which applications send, and each client that supports it.
    confluent-kafka and Java always pass a function with every record, so they have only one way to
    await outcomes. `only` selects the ways that this client supports too."""
    cases = {}
    for way, (changes, clients) in _WAYS.items():
        if only and only not in clients:
            continue
        for client, case in by_client(base, clients, **changes).items():
            cases[f"{client}, {way}"] = case
    return cases


_OURS: Final = ("aiokprod",)
_ASYNCIO: Final = ("aiokprod", "aiokafka-tuned")
_ALL: Final = ("aiokprod", "aiokafka-tuned", "confluent", "java")
_WAYS: Final[Mapping[str, tuple[Mapping[str, Any], tuple[str, ...]]]] = {
    "plain": ({}, _ASYNCIO),
    "lambda": ({"serializer": "text"}, _ASYNCIO),
    "json.dumps": ({"serializer": "json"}, _ASYNCIO),
    "orjson.dumps": ({"serializer": "orjson"}, _ASYNCIO),
    "gather": ({"settle": "gather"}, _ASYNCIO),
    "callback": ({"settle": "callback"}, _ALL),
    "callback, zstd": ({"settle": "callback", "codec": "zstd"}, _ALL),
    "callback, lambda": ({"settle": "callback", "serializer": "text"}, _ALL),
    "callback, json.dumps": ({"settle": "callback", "serializer": "json"}, _ALL),
    "on_delivery": ({"settle": "on_delivery"}, _OURS),
    "on_delivery, lambda": ({"settle": "on_delivery", "serializer": "text"}, _OURS),
    "on_delivery, json.dumps": ({"settle": "on_delivery", "serializer": "json"}, _OURS),
    "bytearray": ({"buffer": "bytearray"}, _ASYNCIO),
    "memoryview": ({"buffer": "memoryview"}, _ASYNCIO),
    "callable partitioner": ({"partitioner": "callable"}, (*_ASYNCIO, "java")),
    "round-robin partitioner": ({"partitioner": "round-robin"}, (*_OURS, "java")),
    "consistent-random partitioner": (
        {"partitioner": "consistent-random"}, (*_OURS, "confluent"),
    ),
    "interceptor": ({"hook": "interceptor"}, (*_OURS, "java")),
    "plug-in": ({"hook": "plugin"}, _OURS),
}  # fmt: skip


def _awaited_ways(base: Case) -> dict[str, Case]:
    """Return cases of 64 tasks with a serializer, and with a timeout of each call."""
    ways = {
        "plain": base,
        "timeout": base.with_(timeout=5.0),
        "lambda": base.with_(serializer="text"),
    }
    return {
        f"{client}, {way}": case.with_(client=client)
        for way, case in ways.items()
        for client in ("aiokprod", "aiokafka")
    }


def _kib(base: Case) -> dict[str, Case]:
    return by_client(base.with_(size=1024), ("aiokprod", "confluent", "java", "blaster"))


def _load(base: Case, full: bool) -> dict[str, Case]:
    rates = (1_000, 2_000, 5_000, 10_000, 20_000, 40_000, 80_000)
    cases = {}
    for rate in rates if full else rates[::2]:
        paced = base.with_(scenario="paced", tasks=1, rate=rate, seconds=2.0)
        for client in ("aiokprod", "aiokafka", "confluent-aio-tuned"):
            if client == "aiokprod" or rate <= 20_000:  # at higher rates, other clients fall behind
                cases[f"{client}, {rate:,}/s"] = paced.with_(client=client)
    return cases
