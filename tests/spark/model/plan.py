"""The random choices of a seed: the source, the query's settings, the brokers, and the possible
faults.

Like a Kafka topic, the source is an endless numbered list of rows. Row `n` is the same at every
read, so a replayed micro-batch has the same rows.
"""

from __future__ import annotations

import random
import zlib
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa

from aiokprod.spark.rows import project
from aiokprod.spark.sink_schema import SinkColumns

DAY: Final = 86_400.0
RETENTION_S: Final = 7 * DAY
"""offsets.retention.minutes of the brokers, in seconds."""
ZONES: Final = ("UTC", "Europe/Berlin", "America/New_York")
SPLITS: Final = ("round", "range", "skew", "topic")
FIRST_US: Final = 1_600_000_000_000_000

FAULTS: Final = (
    "kill_driver", "kill_committer", "kill_worker", "stop_query", "lost_executor", "speculation",
    "slow_task", "lost_answers", "error_codes", "delays", "broker_kill", "outage",
    "commit_process", "task_error",
)  # fmt: skip
"""Faults that may occur while the query runs."""
ACTIONS: Final = (
    "roll_back", "repartition", "delete_topic", "delete_all", "session", "second_driver",
    "shared_checkpoint", "stand_still", "time_out",
)  # fmt: skip
"""Actions of the operator between two runs of the query."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings that determine how the rows of a batch become the tables of tasks.

    Attributes:
        tasks: number of Spark partitions.
        split: the rule that assigns rows to partitions.
        zone: spark.sql.session.timeZone.
        table_rows: maximum number of rows in an Arrow batch.
    """

    tasks: int
    split: str
    zone: str = "UTC"
    table_rows: int = 10

    def task_of(self, number: int, place: int, count: int, topic: str) -> int:
        """Return the task of row `number`, which is at `place` among the `count` rows of its
        batch."""
        if self.split == "round":
            return number % self.tasks
        if self.split == "range":
            return place * self.tasks // count
        if self.split == "skew":
            return self.tasks - 1
        return zlib.crc32(topic.encode()) % self.tasks


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the source."""

    number: int
    topic: str


@dataclass(frozen=True)
class Plan:
    """All choices that a seed determines before its run.

    Attributes:
        streaming: a stream with exactly_once if True, else batch jobs with delivery=transactional.
        topics: topics of the rows; a single topic is given as an option if `topic_option`.
        topic_runs: number of consecutive rows with the same topic.
        timeout_s: kafka.transaction.timeout.ms, in seconds.
        slots: number of tasks that run at the same time.
        goal: number of micro-batches or jobs until the faults end.
        menu: faults and actions of this seed.
        rate: probability of the faults and actions in the menu.
    """

    seed: int
    streaming: bool
    profile: str
    brokers: int
    marker_s: float
    topics: tuple[str, ...]
    topic_option: bool
    topic_runs: int
    rich: bool
    timeout_s: float
    max_failures: int
    slots: int
    missing_markers: str
    goal: int
    menu: frozenset[str]
    rate: float
    settings: Settings

    def row(self, number: int) -> Row:
        """Return row `number` of the source."""
        place = number // self.topic_runs
        topic = self.topics[zlib.crc32(f"{self.seed}.{place}".encode()) % len(self.topics)]
        return Row(number, topic)

    def tasks(self, rows: range, settings: Settings) -> tuple[tuple[int, ...], ...]:
        """Return the row numbers of each task of a batch."""
        parts: list[list[int]] = [[] for _ in range(settings.tasks)]
        for place, number in enumerate(rows):
            topic = self.row(number).topic
            parts[settings.task_of(number, place, len(rows), topic)].append(number)
        return tuple(map(tuple, parts))

    def tables(self, numbers: tuple[int, ...], settings: Settings) -> list[Any]:
        """Return the tables that a task receives."""
        step = settings.table_rows
        parts = [numbers[first : first + step] for first in range(0, len(numbers), step)]
        return [self._table(part, settings, index * step) for index, part in enumerate(parts)]

    def _table(self, numbers: tuple[int, ...], settings: Settings, first: int) -> Any:
        values = [str(number).encode() for number in numbers]
        columns: dict[str, Any] = {
            "value": pa.array(values, pa.binary()),
            "key": pa.array(values, pa.binary()),
        }
        if not self.topic_option:
            topics = [self.row(number).topic for number in numbers]
            columns["topic"] = pa.array(topics, pa.string())
        if self.rich:
            stamps = [FIRST_US + 1000 * number for number in numbers]
            columns["timestamp"] = pa.array(stamps, pa.timestamp("us", tz=settings.zone))
            columns["headers"] = pa.array(
                [[{"key": "n", "value": value}] for value in values],
                pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
            )
        batch = pa.RecordBatch.from_pydict(columns)
        names = list(columns)
        places: dict[str, Any] = {name: names.index(name) for name in names}
        topic = self.topics[0] if self.topic_option else None
        return project(batch, SinkColumns(**places), topic=topic, first_row=first)

    def options(self, missing_markers: str, servers: str) -> dict[str, str]:
        """Return the options of the sink."""
        options = {
            "kafka.bootstrap.servers": servers,
            "delivery": "exactly_once" if self.streaming else "transactional",
            "transactionalIdPrefix": "p",
            "kafka.transaction.timeout.ms": str(int(self.timeout_s * 1000)),
            "kafka.request.timeout.ms": "5000",
            "kafka.delivery.timeout.ms": "20000",
            "kafka.max.block.ms": "20000",
        }
        if self.streaming:
            options["missingMarkers"] = missing_markers
        if self.topic_option:
            options["topic"] = self.topics[0]
        return options


def plan_of(seed: int) -> Plan:
    """Return the plan of a seed."""
    rng = random.Random(seed * 7919 + 20)
    streaming = rng.random() < 0.8
    names = rng.choice((("t",), ("a", "b"), ("b", "a"), ("a", "b", "c")))
    topic_option = len(names) == 1 and rng.random() < 0.7
    chosen = [name for name in FAULTS if rng.random() < 0.35]
    if streaming:
        chosen += [name for name in ACTIONS if rng.random() < 0.35]
    slow = "slow_task" in chosen or "time_out" in chosen
    return Plan(
        seed=seed,
        streaming=streaming,
        profile=rng.choice(("2.8", "3.9", "4.0", "4.3", "4.3", "4.3")),
        brokers=rng.choice((1, 1, 1, 1, 2, 3)),
        marker_s=rng.choice((0.0, 0.0, 0.002, 0.3)),
        topics=names,
        topic_option=topic_option,
        topic_runs=rng.choice((1, 1, 3, 8)),
        rich=rng.random() < 0.3,
        timeout_s=rng.choice((8.0, 30.0)) if slow else rng.choice((60.0, 900.0)),
        max_failures=rng.choice((1, 2, 4)),
        slots=rng.choice((1, 2, 4)),
        missing_markers=rng.choice(("warn", "warn", "fail")),
        goal=rng.randrange(2, 6),
        menu=frozenset(chosen),
        rate=rng.choice((0.15, 0.3, 0.5)),
        settings=Settings(rng.randrange(1, 4), rng.choice(SPLITS), rng.choice(ZONES),
                          rng.choice((2, 10))),
    )  # fmt: skip


def repartitioned(settings: Settings, rng: random.Random) -> Settings:
    """Return settings with another partition count, or another assignment of rows."""
    while True:
        other = replace(settings, tasks=rng.randrange(1, 4), split=rng.choice(SPLITS))
        if other != settings:
            return other


def other_session(settings: Settings, rng: random.Random) -> Settings:
    """Return other session settings, which do not change the rows of a task."""
    return replace(settings, zone=rng.choice(ZONES), table_rows=rng.choice((1, 2, 10)))
