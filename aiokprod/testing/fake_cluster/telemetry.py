"""The receiver of client telemetry (KIP-714): hands out a subscription and keeps what is pushed."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Push:
    """One PushTelemetry request that was accepted.

    Attributes:
        client_instance_id: of the client.
        time: loop time of its arrival, s.
        codec_id: of the compression.
        data: as pushed, possibly compressed.
        terminating: the client said that it is the last one.
    """

    client_instance_id: bytes
    time: float
    codec_id: int
    data: bytes
    terminating: bool


@dataclass(slots=True)
class ClientTelemetry:
    """What the brokers ask for; change it at any time. Every change needs a new `subscription_id`.

    Attributes:
        requested: prefixes of names; none at all means that nothing is to be pushed.
        interval_ms, max_bytes, delta, codecs: see `GetTelemetrySubscriptionsResponse`.
        pushes: accepted requests, in order.
    """

    requested: tuple[str, ...]
    interval_ms: int = 10_000
    max_bytes: int = 1 << 20
    delta: bool = True
    codecs: tuple[int, ...] = ()
    subscription_id: int = 1
    pushes: list[Push] = field(default_factory=list)
    _clients: int = 0

    def instance_id(self, known: bytes) -> bytes:
        """The id of a client: the one that it has, or a new one."""
        if any(known):
            return known
        self._clients += 1
        return uuid.UUID(int=self._clients).bytes
