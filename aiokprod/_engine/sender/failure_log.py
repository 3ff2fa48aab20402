"""Logs records that failed while no task was waiting for them. During an outage, the failures are
summarised instead of logged for each batch."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Final

from aiokprod._log_fields import log_fields

if TYPE_CHECKING:
    from aiokprod.errors import KafkaError
    from aiokprod.records import TopicPartition

logger = logging.getLogger(__name__)

LINE_EVERY: Final = 10.0
"""Seconds between two messages. The first failure is logged immediately; later failures are
summarised in the next message."""

_NAMED: Final = 3


class FailureLog:
    """The failed records that are not logged yet. Times are `loop.time()`.

    Attributes:
        pending: number of records that are not logged yet.
        client_id: the client.id of the producer, for the log.
    """

    def __init__(self) -> None:
        self.pending = 0
        self.client_id: str | None = None
        self._logged_at = -math.inf
        self._partitions: dict[TopicPartition, None] = {}
        self._error: KafkaError | None = None

    def note(self, where: TopicPartition, records: int, error: KafkaError, now: float) -> None:
        """Record that records of a batch failed with `error`."""
        self.pending += records
        self._partitions[where] = None
        self._error = error
        self.flush(now)

    def flush(self, now: float, *, at_once: bool = False) -> None:
        """Log the pending failures if a message is due or `at_once` is set."""
        if not self.pending or not (at_once or now >= self._logged_at + LINE_EVERY):
            return
        names = [str(each) for each in self._partitions]
        more = f" and {len(names) - _NAMED} more partitions" if len(names) > _NAMED else ""
        logger.error(
            "%d records to %s failed and no task was waiting for them (await each Delivery, or "
            "pass on_delivery, to handle such errors): %s",
            self.pending, ", ".join(names[:_NAMED]) + more, self._error,
            extra=log_fields(
                "records_failed", error=self._error, client_id=self.client_id,
                records=self.pending, partitions=names[:100],
            ),
        )  # fmt: skip
        self._logged_at, self.pending, self._error = now, 0, None
        self._partitions.clear()
