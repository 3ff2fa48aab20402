"""Decides whether records may take the compiled append path."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiokprod._core.append import Appender


class FastPathSwitch:
    """The only writer of `Appender.enabled`.

    The fast path is on while both conditions hold:

    - a transaction is open and not prepared, or the producer is not transactional;
    - the producer takes records: no error has ended it (`Runtime.failure`), it is not closing, and
      is not a copy of another process's producer.
    """

    def __init__(self, appender: Appender, *, transactional: bool) -> None:
        self._appender = appender
        self._transaction_open = not transactional
        self._stopped = False
        self._update()

    def set_transaction_open(self, is_open: bool) -> None:
        """A transaction was opened, or it ends or is prepared."""
        self._transaction_open = is_open
        self._update()

    def stop(self) -> None:
        """Turn the fast path off permanently. Can be repeated if a signal handler interrupted
        it."""
        self._stopped = True
        self._update()

    def _update(self) -> None:
        self._appender.enabled = self._transaction_open and not self._stopped
