"""What a script is: the settings of a producer, the steps of its application and of the cluster.

Scripts are plain data, so that one can be printed, repeated and given to any client. Everything in
a script is triggered by steps and by requests, never by the clock alone: results must not depend on
how busy the machine is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

PRODUCE, METADATA, FIND_COORDINATOR, API_VERSIONS, INIT_PRODUCER_ID = 0, 3, 10, 18, 22
ADD_PARTITIONS, ADD_OFFSETS, END_TXN, TXN_OFFSET_COMMIT = 24, 25, 26, 28

API_NAMES: Final = {
    PRODUCE: "produce",
    METADATA: "metadata",
    FIND_COORDINATOR: "find-coordinator",
    API_VERSIONS: "api-versions",
    INIT_PRODUCER_ID: "init-producer-id",
    ADD_PARTITIONS: "add-partitions",
    ADD_OFFSETS: "add-offsets",
    END_TXN: "end-txn",
    TXN_OFFSET_COMMIT: "txn-offset-commit",
}

TOPIC: Final = "t"
GROUP: Final = "g"

How = Literal["reset", "half", "close", "silent", "garbage", "correlation"]
Mode = Literal["idempotent", "plain", "tv1", "tv2"]
MODES: Final[tuple[Mode, ...]] = ("idempotent", "plain", "tv1", "tv2")


@dataclass(frozen=True)
class ProduceCode:
    """Answer the next batches of a partition with an error code.

    Attributes:
        times: batches; None for all.
        append: the batches are in the log all the same.
        skip: batches that pass before.
        hint: leader errors carry the leader (KIP-951).
        records: 1 to name record 0 of the batch as the one refused (KIP-467).
    """

    code: int
    times: int | None = 1
    append: bool = False
    partition: int = 0
    skip: int = 0
    hint: bool = True
    records: int = 0


@dataclass(frozen=True)
class ApiCode:
    """Answer the next requests of an API with an error code, carried out or not."""

    api: int
    code: int
    times: int | None = 1
    process: bool = False
    skip: int = 0


@dataclass(frozen=True)
class Break:
    """Break connections instead of responding.

    Attributes:
        how: "reset" before a byte of the answer, "half" after eight bytes of it, "close" in order,
            "silent" leaves the connection open without an answer, "garbage" answers with bytes that
            no client can read, "correlation" with the number of another request.
        process: the request is carried out first.
    """

    api: int
    how: How
    times: int | None = 1
    process: bool = True
    skip: int = 0


@dataclass(frozen=True)
class Throttle:
    """Answers of an API (None: of all) name a throttle time."""

    milliseconds: int
    api: int | None = None
    times: int | None = None


@dataclass(frozen=True)
class Odd:
    """Change responses to something that a broker or a gateway has been seen to send.

    Attributes:
        what: name of an edit in `oddities.EDITS`; `value` is its parameter.
    """

    what: str
    times: int | None = 1
    skip: int = 0
    value: int = 0


@dataclass(frozen=True)
class When:
    """Do something to the cluster when the n-th request of an API arrives (1: the next)."""

    api: int
    do: Do
    number: int = 1


@dataclass(frozen=True)
class Do:
    """Something that happens to the cluster, see `stage.ACTIONS`."""

    what: str
    partition: int = 0
    broker: int = 0


Fault = ProduceCode | ApiCode | Break | Throttle | Odd | When


@dataclass(frozen=True)
class Send:
    """Submit `count` records to a partition, one after the other, without waiting."""

    partition: int = 0
    count: int = 1


@dataclass(frozen=True)
class Wait:
    """Wait for the outcome of every record submitted."""


@dataclass(frozen=True)
class Pause:
    """Let time pass, in milliseconds."""

    milliseconds: int


@dataclass(frozen=True)
class Clear:
    """End all faults."""


@dataclass(frozen=True)
class Call:
    """A transactional call. "end" is what applications do: commit, abort if that fails."""

    name: Literal["init", "begin", "commit", "abort", "offsets", "end"]


Step = Send | Wait | Pause | Clear | Call | Do | Fault


@dataclass(frozen=True)
class Script:
    """A scenario that every client runs.

    Attributes:
        name: unique; `--script NAME` plays it alone.
        family: what it belongs to, for the summary.
        mode: of the producer: idempotent, plain (one request in flight), or transactional with the
            first or the second protocol.
        steps: in order. A fresh producer starts before the first; after the last one the cluster
            behaves, a fresh record is sent and the producer closed.
        settings: of the producer, by Java's names, over those of `settings.py`.
        profile: Kafka version that the brokers speak like.
        batching: records submitted together share a batch; else each has its own.
        brokers: how many.
        delivers: our producer must deliver every record, whatever Java's does.
        racy: reason why clients may rightly end differently from run to run; hard rules only.
    """

    name: str
    family: str
    mode: Mode
    steps: tuple[Step, ...]
    settings: tuple[tuple[str, str], ...] = ()
    profile: str = "4.3"
    batching: bool = False
    brokers: int = 2
    racy: str = ""
    delivers: bool = False

    @property
    def transactional(self) -> bool:
        """True if the producer of the script has a transactional id."""
        return self.mode in ("tv1", "tv2")

    @property
    def faults(self) -> list[Fault]:
        """What the cluster is instructed to do wrong."""
        kinds = (ProduceCode, ApiCode, Break, Throttle, Odd, When)
        return [step for step in self.steps if isinstance(step, kinds)]

    @property
    def deadline_ms(self) -> int:
        """delivery.timeout.ms."""
        return int(dict(self.settings).get("delivery.timeout.ms", LONG["delivery.timeout.ms"]))

    @property
    def block_ms(self) -> int:
        """max.block.ms."""
        return int(dict(self.settings).get("max.block.ms", LONG["max.block.ms"]))


COMMON: Final = {
    "acks": "all",
    "retry.backoff.ms": "4",
    "retry.backoff.max.ms": "40",
    "reconnect.backoff.ms": "4",
    "reconnect.backoff.max.ms": "40",
    "transaction.timeout.ms": "30000",
}
"""Settings of all scripts."""

LONG: Final = {"delivery.timeout.ms": "5000", "request.timeout.ms": "2500", "max.block.ms": "5000"}
"""For scripts whose faults end by themselves: no deadline comes near, however busy the machine."""

SHORT: Final = (
    ("delivery.timeout.ms", "1200"),
    ("request.timeout.ms", "1000"),
    ("max.block.ms", "1600"),
)
"""For scripts whose faults last until the deadline."""

SILENT: Final = (("request.timeout.ms", "400"),)
"""For scripts with answers that never come."""


def settings_of(script: Script) -> dict[str, str]:
    """The producer's settings by Java's names, without bootstrap.servers."""
    chosen = {**COMMON, **LONG, **dict(script.settings)}
    chosen["linger.ms"] = "25" if script.batching else "0"
    chosen["batch.size"] = "16384" if script.batching else "0"
    chosen["enable.idempotence"] = "false" if script.mode == "plain" else "true"
    chosen["max.in.flight.requests.per.connection"] = "1" if script.mode == "plain" else "5"
    if script.transactional:
        chosen["transactional.id"] = "x"
    return chosen
