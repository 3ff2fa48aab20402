"""Warns if `timestamp_ms`, which is in milliseconds, seems to be in seconds."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from aiokprod._log_fields import log_fields

if TYPE_CHECKING:
    from aiokprod._engine.buffer.producer_batch import ProducerBatch

logger = logging.getLogger(__name__)

FIRST: Final = 100_000_000
"""First suspicious timestamp: in the year 1973 if in seconds, on 2 January 1970 if in
milliseconds."""
END: Final = 10_000_000_000
"""End of the suspicious timestamps: the year 2286 if in seconds, 26 April 1970 if in
milliseconds."""


class TimestampCheck:
    """Warns once, for the first batch whose first record seems to have a timestamp in seconds.

    The record is sent anyway: a time in early 1970 is valid, and the topic may ignore timestamps.
    To save a call, the accumulator itself compares the timestamp of each batch with FIRST and END.
    """

    def __init__(self) -> None:
        self._warned = False

    def suspect(self, batch: ProducerBatch) -> None:
        """Warn, unless this was done already, that the first record of `batch` has a timestamp from
        FIRST to END."""
        if self._warned:
            return
        self._warned = True
        stamp = batch.core.base_timestamp
        logger.warning(
            "topic %s: a record with timestamp_ms=%d is of %s: timestamp_ms is Unix time in "
            "milliseconds, int(time.time() * 1000); brokers may delete such records at once, "
            "by the retention time of the topic",
            batch.topic_partition.topic, stamp, datetime.fromtimestamp(stamp / 1000, UTC).date(),
            extra=log_fields(
                "timestamp_in_seconds",
                topic_partition=batch.topic_partition,
                timestamp_ms=stamp,
            ),
        )  # fmt: skip
