"""Scripts: the settings of a producer, the steps of its application and of the cluster.

Scripts are plain data, so they can be printed, repeated and given to any client. Steps and requests
trigger everything in a script, never the clock alone: results must not depend on the load of the
machine.
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
        times: number of batches; None for all.
        append: the batches are appended nevertheless.
        skip: number of earlier batches without the error.
        hint: leader errors contain the leader (KIP-951).
        records: 1 to report record 0 of the batch as the refused one (KIP-467).
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
    """Answer the next requests of an API with an error code, and execute them or not."""

    api: int
    code: int
    times: int | None = 1
    process: bool = False
    skip: int = 0


@dataclass(frozen=True)
class Break:
    """Break connections instead of responding.

    Attributes:
        how: "reset" before a byte of the response, "half" after eight bytes of it, "close" in
            order, "silent" leaves the connection open without a response, "garbage" sends bytes
            that no client can read, "correlation" sends the correlation id of another request.
        process: the request is executed first.
    """

    api: int
    how: How
    times: int | None = 1
    process: bool = True
    skip: int = 0


@dataclass(frozen=True)
class Throttle:
    """Add a throttle time to the responses of an API (None: of all)."""

    milliseconds: int
    api: int | None = None
    times: int | None = None


@dataclass(frozen=True)
class Odd:
    """Change responses to something that real brokers or gateways send.

    Attributes:
        what: name of an edit in `odd_metadata.EDITS`; `value` is its parameter.
    """

    what: str
    times: int | None = 1
    skip: int = 0
    value: int = 0


@dataclass(frozen=True)
class When:
    """Perform an action on the cluster when the n-th request of an API arrives (1: the next)."""

    api: int
    do: Do
    number: int = 1


@dataclass(frozen=True)
class Do:
    """An action on the cluster, see `odd_metadata.ACTIONS`."""

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
    """A transactional call. "end" does what applications do: commit, and abort if that fails."""

    name: Literal["init", "begin", "commit", "abort", "offsets", "end"]


Step = Send | Wait | Pause | Clear | Call | Do | Fault


@dataclass(frozen=True)
class Script:
    """A scenario that every client runs.

    Attributes:
        name: unique; `--script NAME` plays only this script.
        family: group in the summary.
        mode: kind of producer: idempotent, plain (one request in flight), or transactional with the
            first or the second protocol.
        steps: in order. A fresh producer starts before the first step. After the last step all
            faults end, a fresh record is sent and the producer is closed.
        settings: producer settings by Java's names, which override `COMMON` and `LONG`.
        profile: Kafka version that the brokers emulate.
        batching: records submitted together share a batch; otherwise each has a separate batch.
        brokers: number of brokers.
        delivers: our producer must deliver every record, whatever Java's does.
        racy: reason why results may legitimately differ between runs; only hard rules apply.
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
        """The faults of the cluster."""
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
"""Settings for scripts whose faults end by themselves: no deadline comes near, even on a busy
machine."""

SHORT: Final = (
    ("delivery.timeout.ms", "1200"),
    ("request.timeout.ms", "1000"),
    ("max.block.ms", "1600"),
)
"""Settings for scripts whose faults last until the deadline."""

SILENT: Final = (("request.timeout.ms", "400"),)
"""Settings for scripts with responses that never arrive."""


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
