"""Logs the events of one client's connections, and limits the number of messages.

A broker that restarts ends all its connections, and an unreachable broker is dialled about once a
second. For a broker that was connected earlier, both are logged at DEBUG; `DeliveryWatch` warns if
records are delayed. Other problems are logged at WARNING, at most once in 30 s.
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
"""Minimum number of seconds between two warnings about connections."""

_ROUTINE: Final = frozenset(
    {
        CloseReason.IDLE,
        CloseReason.EOF,
        CloseReason.RESET,
        CloseReason.TIMEOUT,
        CloseReason.NEVER_CONNECTED,
    }
)
"""Reasons that are expected when a broker restarts or is unreachable."""

_MAX_KNOWN: Final = 10_000
"""Maximum number of remembered addresses. At this limit all of them are forgotten."""


class ConnectionLog:
    """Logs the events of connections. Times are seconds of `loop.time()`.

    Attributes:
        warned_at: time of the last warning, or -inf if none. `DeliveryWatch` sets it too, because
            it warns about the same problems.
    """

    def __init__(self, client_id: str | None) -> None:
        self.warned_at = -math.inf
        self._client_id = client_id
        self._known: set[tuple[str, int]] = set()

    def is_kafka(self, address: tuple[str, int]) -> bool:
        """Return True if a connection to this host and port was READY. The address is then a Kafka
        listener that fits this client's configuration, so error texts do not suggest checking
        that."""
        return address in self._known

    def connecting(self, connection: Connection) -> None:
        """Log that a connection is being opened."""
        logger.debug(
            "connecting to %s", connection.channel.peer,
            extra=self._fields("connecting", connection),
        )  # fmt: skip

    def connected(self, connection: Connection) -> None:
        """Log that a connection accepts requests, and remember its address."""
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
        """Log that a connection, or an attempt to connect, ended with an error."""
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
        """Log that connections were aborted because the time to close them had elapsed."""
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
