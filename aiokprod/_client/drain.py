"""Counts and logs the outcomes of the records that `close()` drains."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, Final

from aiokprod._core.batch import ACKNOWLEDGED, SPLIT
from aiokprod._engine.sender.batch_errors import outcome_of
from aiokprod._log_fields import log_fields
from aiokprod.errors import Outcome
from aiokprod.records import DrainReport, TopicDrain, UndeliveredBatch

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable

    from aiokprod._core.batch import BatchCore
    from aiokprod._engine.buffer.producer_batch import ProducerBatch

logger = logging.getLogger("aiokprod")

SLOW_DRAIN: Final = 1.0
"""Duration in seconds after which a running drain is logged."""

EMPTY_DRAIN: Final = DrainReport(0, 0, (), 0.0, complete=True)
"""The report for a producer that was not started."""


class Drain:
    """Tracks the batches that have no outcome when `close()` is called.

    Args:
        batches: all batches without an outcome. If a batch is split, its parts are counted.
        loop: its clock measures the duration.
        client_id: the client.id of the producer, for log messages.
    """

    def __init__(
        self, batches: Iterable[ProducerBatch], loop: asyncio.AbstractEventLoop, client_id: str
    ) -> None:
        self._cores = dict.fromkeys(batch.core for batch in batches)
        self._refused: Counter[str] = Counter()
        self._failed: Counter[tuple[str, Outcome]] = Counter()
        self._loop = loop
        self._client_id = client_id
        self._start = loop.time()
        self._undelivered: tuple[UndeliveredBatch, ...] = ()
        self._slow = loop.call_later(SLOW_DRAIN, self._log_slow)

    def follow(self, core: BatchCore) -> None:
        """Also track a batch with a record of another thread that was appended during the drain."""
        self._cores[core] = None

    def refused(self, topic: str) -> None:
        """Count an accepted record of another thread that could not be appended before the end of
        the drain."""
        self._refused[topic] += 1

    def failed(self, topic: str, outcome: Outcome) -> None:
        """Count a record of another thread that could not be appended because of an error."""
        self._failed[topic, outcome] += 1

    def _log_slow(self) -> None:
        waiting: Counter[str] = Counter()
        for core in self._settling():
            if not core.settled:
                waiting[core.topic] += core.record_count
        topics = ", ".join(f"{records} to {topic}" for topic, records in sorted(waiting.items()))
        logger.info(
            "%s: closing, records are still to be delivered: %s", self._client_id, topics,
            extra=log_fields(
                "closing", client_id=self._client_id, records=sum(waiting.values())
            ),
        )  # fmt: skip

    def give_up(self, batches: Iterable[ProducerBatch]) -> None:
        """End the drain, and store the batches that still have no outcome for the report."""
        self._slow.cancel()
        self._undelivered = tuple(
            UndeliveredBatch(
                batch.topic_partition,
                batch.core.record_count,
                Outcome.UNKNOWN if batch.in_flight else outcome_of(batch),
            )
            for batch in batches
        )

    def report(self) -> DrainReport:
        """Create and log the report. Every record must have its outcome."""
        topics: dict[str, Counter[Outcome | None]] = {}
        for core in self._settling():
            _count(core, topics.setdefault(core.topic, Counter()))
        for topic, records in self._refused.items():
            topics.setdefault(topic, Counter())[Outcome.NOT_SENT] += records
        for (topic, outcome), records in self._failed.items():
            topics.setdefault(topic, Counter())[outcome] += records
        by_topic = tuple(
            TopicDrain(
                topic,
                delivered=found[None],
                not_sent=found[Outcome.NOT_SENT],
                rejected=found[Outcome.REJECTED],
                unknown=found[Outcome.UNKNOWN],
            )
            for topic, found in sorted(topics.items())
            if found.total()
        )
        report = DrainReport(
            delivered=sum(topic.delivered for topic in by_topic),
            failed=sum(topic.failed for topic in by_topic),
            undelivered=self._undelivered,
            elapsed_s=self._loop.time() - self._start,
            complete=not self._undelivered and not self._refused,
            by_topic=by_topic,
        )
        log_report(report, self._client_id)
        return report

    def _settling(self) -> Iterable[BatchCore]:
        """Yield the batches that contain the records. Split batches are replaced by their parts."""
        for core in self._cores:
            yield from _parts(core)


def log_report(report: DrainReport, client_id: str) -> None:
    """Log a report at ERROR if the drain is incomplete, at WARNING if records failed, otherwise at
    INFO."""
    level = logging.INFO
    if not report.complete:
        level = logging.ERROR
    elif report.failed:
        level = logging.WARNING
    logger.log(
        level, "%s: closed, %s", client_id, report,
        extra=log_fields(
            "closed", client_id=client_id, delivered=report.delivered, failed=report.failed,
            complete=report.complete, seconds=round(report.elapsed_s, 3),
        ),
    )  # fmt: skip


def _parts(core: BatchCore) -> Iterable[BatchCore]:
    """Yield `core` itself or, if it was split, its parts."""
    if core.state == SPLIT:
        for part in core.parts or ():
            yield from _parts(part)
    else:
        yield core


def _count(core: BatchCore, found: Counter[Outcome | None]) -> None:
    """Count the records of a settled batch by outcome. None stands for delivered."""
    if core.state == ACKNOWLEDGED:
        found[None] += core.record_count
    elif core.error is not None:  # None if all records were withdrawn
        found[core.error.outcome] += core.record_count
