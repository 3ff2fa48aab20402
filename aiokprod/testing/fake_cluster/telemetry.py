"""The receiver of client telemetry (KIP-714). It returns a subscription and stores the pushed
metrics."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Push:
    """An accepted PushTelemetry request.

    Attributes:
        client_instance_id: id of the client.
        time: loop time of the arrival, s.
        codec_id: id of the compression codec.
        data: the pushed metrics, possibly compressed.
        terminating: True if the client marked the push as its last.
    """

    client_instance_id: bytes
    time: float
    codec_id: int
    data: bytes
    terminating: bool


@dataclass(slots=True)
class ClientTelemetry:
    """The subscription that the brokers return. It can be changed at any time. Every change needs a
    new `subscription_id`.

    Attributes:
        requested: prefixes of metric names. Without prefixes, no metrics are pushed.
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
        """Return the id of a client: its current id `known`, or a new id if that is zero."""
        if any(known):
            return known
        self._clients += 1
        return uuid.UUID(int=self._clients).bytes
