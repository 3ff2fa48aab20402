"""Determines whether records may use the compiled append path."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiokprod._core.append import Appender


class FastPathSwitch:
    """Sets `Appender.enabled`, which no other code may write.

    The fast path is enabled while both conditions hold:

    - A transaction is open and not prepared, or the producer is not transactional.
    - The producer accepts records: it has not failed (`Runtime.failure`), it is not closing, and
      the process is not a fork of the process in which the producer was started.
    """

    def __init__(self, appender: Appender, *, transactional: bool) -> None:
        self._appender = appender
        self._transaction_open = not transactional
        self._stopped = False
        self._update()

    def set_transaction_open(self, is_open: bool) -> None:
        """Set whether a transaction is open and not prepared."""
        self._transaction_open = is_open
        self._update()

    def stop(self) -> None:
        """Disable the fast path permanently. Idempotent, so that a call that a signal handler
        interrupted can be repeated."""
        self._stopped = True
        self._update()

    def _update(self) -> None:
        self._appender.enabled = self._transaction_open and not self._stopped
