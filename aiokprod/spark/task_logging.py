"""The log messages of a task.

Tasks run in several processes, and each process would repeat a warning of its producer. A topic
that does not exist yet does not justify a warning. Either the brokers create the topic, or the task
fails with an error that names the topic and the row.
"""

from __future__ import annotations

import logging
from typing import Final

_METADATA: Final = "aiokprod._engine.metadata.topics"
"""Name of the logger for topic errors in Metadata responses."""


def quiet_metadata() -> None:
    """Log topic errors in Metadata responses at level INFO in this process. Repeated calls have no
    effect."""
    logger = logging.getLogger(_METADATA)
    if not any(isinstance(one, _Lower) for one in logger.filters):
        logger.addFilter(_Lower())


class _Lower(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno != logging.WARNING:
            return True
        record.levelno, record.levelname = logging.INFO, logging.getLevelName(logging.INFO)
        return logging.getLogger(record.name).isEnabledFor(logging.INFO)
