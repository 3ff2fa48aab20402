"""Logs the events of one client's connections, and limits the number of messages.

A broker that restarts ends every connection to it, and one that cannot be reached is dialled about
once a second. Neither is logged above DEBUG for a broker that was connected earlier; if records
wait because of it, `DeliveryWatch` warns. Other problems are logged as WARNING, at most one in 30
s.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Final

from aiokprod._log_fields import log_fields
from aiokprod._net.channel_states import CloseReason

if TYPE_CHECKING:
    from aiokprod._net.connection import Connection
    from aiokprod.errors import KafkaError

logger = logging.getLogger(__name__)

WARN_EVERY: Final = 30.0
"""Seconds between two warnings about connections."""

_ROUTINE: Final = frozenset(
    {
        CloseReason.IDLE,
        CloseReason.EOF,
        CloseReason.RESET,
        CloseReason.TIMEOUT,
        CloseReason.NEVER_CONNECTED,
    }
)
"""Reasons that only mean that a broker restarts or cannot be reached."""

_MAX_KNOWN: Final = 10_000
"""Limit of the addresses that are remembered; above it they are cleared."""


class ConnectionLog:
    """Logs the events of connections. Times are seconds of `loop.time()`.

    Attributes:
        warned_at: time of the last warning, -inf before the first one. Other objects that warn of
            the same problems set it too.
    """

    def __init__(self, client_id: str | None) -> None:
        self.warned_at = -math.inf
        self._client_id = client_id
        self._known: set[tuple[str, int]] = set()

    def is_kafka(self, address: tuple[str, int]) -> bool:
        """True if a connection to this host and port was READY, so this is a Kafka listener that
        fits this client's configuration. Error texts then do not suggest to check that."""
        return address in self._known

    def connecting(self, connection: Connection) -> None:
        """A connection is being opened."""
        logger.debug(
            "connecting to %s", connection.channel.peer,
            extra=self._fields("connecting", connection),
        )  # fmt: skip

    def connected(self, connection: Connection) -> None:
        """A connection accepts requests."""
        again = connection.address in self._known
        if len(self._known) >= _MAX_KNOWN:
            self._known.clear()
        self._known.add(connection.address)
        logger.log(
            logging.DEBUG if again else logging.INFO, "connected to %s", connection.channel.peer,
            extra=self._fields("connected", connection),
        )  # fmt: skip

    def closed(
        self, connection: Connection, reason: CloseReason, error: KafkaError, now: float
    ) -> None:
        """A connection, or the attempt to open one, ended with an error."""
        level = logging.WARNING
        known = connection.was_ready or connection.address in self._known
        if (reason in _ROUTINE and known) or now < self.warned_at + WARN_EVERY:
            level = logging.DEBUG
        else:
            self.warned_at = now
        happened = (
            "could not connect" if reason is CloseReason.NEVER_CONNECTED
            else f"connection closed ({reason.value})"
        )  # fmt: skip
        logger.log(
            level, "%s: %s", happened, error,
            extra=self._fields("connection_closed", connection, error, reason=reason.value),
        )  # fmt: skip

    def dropped(self, count: int) -> None:
        """Connections were aborted because there was no time left to close them."""
        logger.warning(
            "dropping %d connections: time to close is up", count,
            extra=log_fields(
                "connections_dropped", client_id=self._client_id, connections=count
            ),
        )  # fmt: skip

    def _fields(
        self,
        event: str,
        connection: Connection,
        error: KafkaError | None = None,
        *,
        reason: str = "",
    ) -> dict[str, object]:
        host, port = connection.address
        fields = log_fields(
            event, error=error, client_id=self._client_id, node_id=connection.node_id, host=host,
            port=port,
        )  # fmt: skip
        return {**fields, "kafka_reason": reason} if reason else fields
