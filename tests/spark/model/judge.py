"""The judge compares the promises of docs/spark.md with the logs that read_committed readers see,
and with the actions that were really performed on the query."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from aiokprod.spark import job_report
from aiokprod.spark.commit_messages import Prepared
from aiokprod.spark.driver_commit import CommitFailed
from aiokprod.spark.failures import CheckpointRolledBack, NonDeterministicReplay
from aiokprod.testing.fake_cluster.transactions import Phase

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tests.spark.model.plan import Settings
    from tests.spark.model.spark import Checkpoint
    from tests.spark.model.world import World

Split = tuple[tuple[int, ...], ...]

ROLLED_BACK, REPLAY, MISSING, RETRY = "rolled back", "replay", "missing markers", "retry"
"""Reasons why a batch failed: three rejections that docs/spark.md names, and every failure that a
restart fixes."""

_NOTHING: Final = "Nothing of this attempt was committed"
_NO_RECORD: Final = "Kafka has no record of one before"
_NO_MARKER: Final = "Kafka has no marker of task"
_ROLLED_BACK: Final = "the checkpoint was rolled back"
_UNREACHABLE: Final = (
    "lost_answers", "error_codes", "delays", "broker_kill", "outage", "kill_driver",
    "kill_committer", "kill_worker",
)  # fmt: skip
_RIVALS: Final = (
    "lost_executor", "speculation", "second_driver", "shared_checkpoint", "stop_query",
    "commit_process", "task_error",
)  # fmt: skip
_TIMEOUTS: Final = ("slow_task", "time_out", "delays", "outage", "broker_kill", "lost_answers")


class Violation(AssertionError):
    """A promise was broken."""


@dataclass
class History:
    """The attempts that were really made.

    Attributes:
        splits: for each batch, the split of its rows into tasks, once per try.
        settings: for each batch, the settings of the run, once per try.
        newest: the highest batch whose commit began.
        errors: number of errors of tasks, by class name.
    """

    splits: dict[int, list[Split]] = field(default_factory=dict)
    settings: dict[int, list[Settings]] = field(default_factory=dict)
    newest: int = -1
    errors: Counter[str] = field(default_factory=Counter)

    def note_attempt(self, number: int | None, split: Split, settings: Settings) -> None:
        """Record that a batch is run."""
        if number is not None:
            self.splits.setdefault(number, []).append(split)
            self.settings.setdefault(number, []).append(settings)

    def note_error(self, error: BaseException) -> None:
        """Record that an attempt at a task failed."""
        self.errors[type(error).__name__] += 1


class CommitCheck:
    """The check of one call of commit."""

    def __init__(self, judge: Judge, messages: Sequence[Prepared]) -> None:
        self._judge = judge
        self._messages = messages
        self._lost = [one for one in messages if judge.is_lost(one)]

    def failed(self, error: BaseException) -> None:
        """Handle a call that raised, or whose process was killed."""
        verified = self._lost and self._judge.world.describes
        refused = isinstance(error, NonDeterministicReplay | CheckpointRolledBack)
        if verified or refused or _NOTHING in str(error):
            why = f"{type(error).__name__}: {error}; lost before: {len(self._lost)}"
            self._judge.never_visible |= {key: why for key in map(_key, self._messages)}

    def succeeded(self) -> None:
        """Check a call after which the driver assumes that all transactions are committed."""
        if self._lost:
            raise Violation(f"committed without an error, but these were lost: {self._lost}")


def _key(message: Prepared) -> tuple[int, int]:
    return message.producer_id, message.epoch


class Judge:
    """Collects promises while the query runs, and compares them with the logs at the end.

    Attributes:
        never_visible: transactions that were reported as not committed, with the reason.
        forgiven: rows that may be present twice, because their markers had expired.
        deleted: by topic, rows below this number may be missing, because the topic was deleted.
        unprotected: rows below this number had markers that expired.
        began_again: batch 0 was run after its markers had expired, so it looks like a new query.
        info_lost: markers were deleted by an operator or by retention.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.never_visible: dict[tuple[int, int], str] = {}
        self.forgiven: set[int] = set()
        self.deleted: dict[str, int] = {}
        self.unprotected = 0
        self.began_again = False
        self.info_lost = False
        self.refusals: Counter[str] = Counter()
        self.warnings: list[str] = []
        self._prepared: dict[tuple[int, int], Prepared] = {}
        self._passed: set[tuple[int, int]] = set()

    # -- while the query runs -------------------------------------------------------------------

    def on_attempt(self, task: asyncio.Task[Any]) -> None:
        """Store the message of an attempt that succeeded."""
        if not task.cancelled() and task.exception() is None:
            message: Prepared = task.result()
            self._prepared[_key(message)] = message

    def commit_begins(self, number: int | None, messages: Sequence[Prepared]) -> CommitCheck:
        """Record that a driver calls commit, and return the check of this call."""
        self._passed |= set(map(_key, messages))
        if number is not None and any(one.marked or one.skipped for one in messages):
            self.world.history.newest = max(self.world.history.newest, number)
        return CommitCheck(self, messages)

    def is_lost(self, message: Prepared) -> bool:
        """Return True if the transaction of a prepared task can no longer be committed."""
        if message.skipped or message.producer_id < 0:
            return False
        entry = self.world.cluster.transactions.ids[message.transactional_id]
        owner = entry.producer_id, entry.epoch
        return owner != _key(message) or entry.phase is not Phase.ONGOING

    def on_report(self, number: int | None, messages: Sequence[Prepared]) -> None:
        """Check the report of a committed batch: each task has all its ranges, or is marked as
        skipped."""
        report = job_report.report(messages, number)
        for task in report["tasks"]:
            counted = sum(count for *_, count in task["ranges"])
            known = all(first is not None for _, _, first, _, _ in task["ranges"])
            if task.get("skipped", False):
                good = counted == 0
            else:
                good = counted == task["rows"] and (known or self._may_be_unknown)
            if not good:
                raise Violation(f"report of batch {number}: {task}")

    @property
    def _may_be_unknown(self) -> bool:
        """True if a fault can explain a missing offset. A batch that the broker recognised as a
        duplicate can have no offset."""
        return any(self.world.drawn[name] for name in _UNREACHABLE)

    def refusal(self, batch: int, error: BaseException, split: Split) -> str:
        """Return why a batch failed. Raise Violation if a rejection has no legitimate reason.

        Args:
            error: the error as Spark received it; JobFailed contains the text of the task's error.
        """
        text = str(error)
        found = RETRY
        earlier = [rows for number, tries in self.world.history.splits.items()
                   if number < batch for rows in tries]  # fmt: skip
        if isinstance(error, NonDeterministicReplay) and _NO_RECORD in text:
            found = MISSING
            legal = self.info_lost or not any(any(rows) for rows in earlier)
        elif isinstance(error, NonDeterministicReplay) and _NO_MARKER in text:
            found = MISSING
            index = int(text.partition(_NO_MARKER)[2].split(".")[0])
            legal = self.info_lost or not any(any(rows[index : index + 1]) for rows in earlier)
        elif isinstance(error, NonDeterministicReplay):
            found = REPLAY
            tries = self.world.history.splits[batch]
            legal = self.info_lost or any(_rows(one) != _rows(split) for one in tries)
        elif isinstance(error, CheckpointRolledBack) or _ROLLED_BACK in text:
            found = ROLLED_BACK
            legal = self.world.history.newest > batch
        else:
            legal = self._has_a_cause(error)
        if not legal:
            raise Violation(
                f"batch {batch} is refused without a reason ({found}): "
                f"{type(error).__name__}: {text}; {dict(self.world.drawn)}; "
                f"tries {self.world.history.splits.get(batch)}, now {split}"
            )
        self.refusals[found] += 1
        return found

    def _has_a_cause(self, error: BaseException) -> bool:
        """Return True if a fault or action explains an error that a restart fixes."""
        drawn = self.world.drawn
        if isinstance(error, CommitFailed):
            return any(drawn[name] for name in (*_RIVALS, *_TIMEOUTS, *_UNREACHABLE))
        return any(drawn.values())

    def on_log(self, record: logging.LogRecord) -> None:
        """Store a warning of the sink."""
        self.warnings.append(record.getMessage())

    @property
    def warned(self) -> bool:
        """True if duplicates were reported as possible, or if the query stopped because of them."""
        reported = (_NO_RECORD in text or _NO_MARKER in text for text in self.warnings)
        return self.refusals[MISSING] > 0 or any(reported)

    # -- at the end -----------------------------------------------------------------------------

    def visible(self) -> tuple[Counter[int], set[tuple[int, int]]]:
        """Return how often a read_committed reader sees each row, and the transactions of these
        rows."""
        rows: Counter[int] = Counter()
        owners: set[tuple[int, int]] = set()
        for topic in self.world.cluster.topics.values():
            for partition in topic.partitions:
                log = partition.log
                if log.last_stable_offset != log.high_watermark:
                    raise Violation(f"readers of {topic.name}-{partition.index} are held back")
                for record in log.committed():
                    number = int(record.value or b"")
                    if (
                        self.world.plan.row(number).topic != topic.name
                        or record.key != record.value
                    ):
                        raise Violation(f"{record} is not a row of {topic.name}")
                    rows[number] += 1
                    owners.add((record.producer_id, record.epoch))
        return rows, owners

    def check_transactions(self, owners: set[tuple[int, int]]) -> None:
        """Check that every visible transaction was committed by a driver, and that none was
        reported as not committed."""
        for key in owners:
            if key not in self._passed:
                raise Violation(f"{self._prepared.get(key, key)} is visible, but no driver had it")
            if key in self.never_visible:
                raise Violation(f"{self._prepared.get(key, key)}: {self.never_visible[key]}")

    def check_stream(self, checkpoints: Iterable[Checkpoint]) -> int:
        """Check that each row of a batch that a checkpoint lists as committed is present once.
        Return the number of these rows."""
        rows, owners = self.visible()
        self.check_transactions(owners)
        committed = max(one.committed for one in checkpoints)
        for number in range(max(committed, max(rows, default=-1) + 1)):
            count = rows[number]
            most = 1
            if number in self.forgiven:
                most = 99 if self.warned or self.began_again else 1
            missing = count == 0 and number < committed
            if count > most or (missing and number >= self.deleted.get(self._topic(number), 0)):
                raise Violation(
                    f"row {number} of {self._topic(number)} is there {count} times; committed: "
                    f"{committed}, {dict(self.world.drawn)}, forgiven {sorted(self.forgiven)}, "
                    f"deleted {self.deleted}"
                )
        return committed

    def check_jobs(self, succeeded: Iterable[range]) -> int:
        """Check that each row of a successful job is present once, and that no row is present
        twice. Return the number of rows of these jobs."""
        rows, owners = self.visible()
        self.check_transactions(owners)
        wanted = [number for job in succeeded for number in job]
        for number in wanted:
            if rows[number] != 1:
                raise Violation(f"row {number} of a job that succeeded: {rows[number]} times")
        doubled = [number for number, count in rows.items() if count > 1]
        if doubled:
            raise Violation(f"rows {doubled} are there more than once")
        return len(wanted)

    def _topic(self, number: int) -> str:
        return self.world.plan.row(number).topic


def _rows(split: Split) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(sorted(rows)) for rows in split)
