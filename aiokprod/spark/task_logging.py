"""The log messages of a task.

Tasks run in several processes, and each would repeat a warning of its producer. A topic that does
not exist yet does not justify one: if the brokers create it, nothing is wrong, and if they do not,
the task fails and its error names the topic and the row.
"""

from __future__ import annotations

import logging
from typing import Final

_METADATA: Final = "aiokprod._engine.metadata.topics"
"""Logger of the errors that Metadata responses have for topics."""


def quiet_metadata() -> None:
    """Log errors in Metadata responses at level INFO in this process. May be called again."""
    logger = logging.getLogger(_METADATA)
    if not any(isinstance(one, _Lower) for one in logger.filters):
        logger.addFilter(_Lower())


class _Lower(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno != logging.WARNING:
            return True
        record.levelno, record.levelname = logging.INFO, logging.getLevelName(logging.INFO)
        return logging.getLogger(record.name).isEnabledFor(logging.INFO)
