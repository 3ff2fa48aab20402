"""Logs and reports failures of records of other threads whose futures were never read."""

from __future__ import annotations

import logging
from collections import Counter, deque
from typing import TYPE_CHECKING

from aiokprod._log_fields import log_fields
from aiokprod.errors import KafkaError
from aiokprod.records import TopicPartition

if TYPE_CHECKING:
    import asyncio

    from aiokprod.observer import Observer

logger = logging.getLogger(__name__)


class UnreadFailures:
    """Reports unread failures on the event loop. Failures that arrive together are reported once
    per partition.

    Attributes:
        forked: True in a child process of the process that runs the loop. Failures are then not
            reported.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, observer: Observer, client_id: str) -> None:
        self.forked = False
        self._loop = loop
        self._observer = observer
        self._client_id = client_id
        self._errors: deque[BaseException] = deque()
        self._is_scheduled = False

    def add(self, error: BaseException) -> None:
        """Add the error of a future that was deleted before a caller retrieved it. The garbage
        collector may call this method, so it must not take a lock."""
        self._errors.append(error)
        if self.forked or (self._is_scheduled and not self._loop.is_closed()):
            return
        self._is_scheduled = True
        try:
            self._loop.call_soon_threadsafe(self._report)
        except RuntimeError:  # the loop is closed
            self._report()
        except BaseException:  # an exception raised by a signal handler
            self._is_scheduled = False
            raise

    def _report(self) -> None:
        # Reset this first. A failure that arrives later is then taken by this call, or schedules
        # another one.
        self._is_scheduled = False
        found: Counter[TopicPartition] = Counter()
        first: dict[TopicPartition, KafkaError] = {}
        while (error := self._next()) is not None:
            if not isinstance(error, KafkaError):
                logger.error(
                    "sending a record of another thread failed", exc_info=error,
                    extra=log_fields(
                        "records_failed", error=error, client_id=self._client_id, records=1,
                    ),
                )  # fmt: skip
                continue
            partition = -1 if error.partition is None else error.partition
            where = TopicPartition(error.topic or "", partition)
            found[where] += 1
            first.setdefault(where, error)
        for where, records in found.items():
            self._observer.on_unretrieved_failure(where, records, first[where])
            logger.error(
                "%d records of other threads failed and their futures were not read, the first "
                "one: %s", records, first[where],
                extra=log_fields(
                    "records_failed", topic_partition=where, error=first[where],
                    client_id=self._client_id, records=records,
                ),
            )  # fmt: skip

    def _next(self) -> BaseException | None:
        try:
            return self._errors.popleft()
        except IndexError:  # empty; several threads may call this if the loop is closed
            return None
