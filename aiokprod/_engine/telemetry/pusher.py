"""Pushes the producer's metrics to the brokers that subscribe to them (KIP-714).

The pusher requests the subscription from a broker, and pushes the metrics at the interval in the
response. There is no task: timers and responses call its methods. It uses only open connections.
All broker errors concern only telemetry, so they are logged at DEBUG.

Source: Java `ClientTelemetryReporter`, `ClientTelemetryUtils`.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from aiokprod._errors import Code
from aiokprod._log_fields import log_fields
from aiokprod._version import __version__
from aiokprod._wire.compression import codec_by_id
from aiokprod._wire.messages.get_telemetry_subscriptions import GetTelemetrySubscriptionsRequest
from aiokprod._wire.messages.push_telemetry import PushTelemetryRequest
from aiokprod._wire.otlp import encode_metrics
from aiokprod.errors import ConfigError, DecodeError, UnsupportedVersion, error_code

if TYPE_CHECKING:
    from aiokprod._engine.ports import BrokerClient, ClientResponse, ReadyConnection
    from aiokprod._engine.telemetry.collection import Collection

logger = logging.getLogger(__name__)

API_KEY: Final = 71
"""API key of GetTelemetrySubscriptions. Brokers support it only if a plug-in receives the
metrics."""

DEFAULT_INTERVAL_S: Final = 300.0
"""Seconds between two attempts until a broker has returned an interval."""

LEAST_INTERVAL_S: Final = 0.1

_ZERO_ID: Final = bytes(16)
_FINAL: Final = frozenset({Code.INVALID_REQUEST, Code.INVALID_RECORD, Code.UNSUPPORTED_VERSION})
"""Error codes that end pushing, because every later push would be rejected too."""
_AT_ONCE: Final = frozenset({Code.UNKNOWN_SUBSCRIPTION_ID, Code.UNSUPPORTED_COMPRESSION_TYPE})
"""Error codes for an outdated subscription: request it again immediately, but only once."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """The subscription of a broker; see `GetTelemetrySubscriptionsResponse`. The interval is in
    seconds."""

    id: int
    codecs: tuple[int, ...]
    interval: float
    max_bytes: int
    delta: bool
    requested: tuple[str, ...]


class TelemetryPusher:
    """Pushes the metrics of one producer, on the producer's event loop.

    Args:
        nodes: returns the ids of the brokers that are known now.
        unix_ms: returns the wall-clock time in ms.
        resource: attributes of the client, contained in every push.

    Attributes:
        waiting: True if a request is due, but no connection accepts one: call `wake` when the
            client makes progress.
        ended: True if nothing more will be sent.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        client: BrokerClient,
        collection: Collection,
        *,
        nodes: Callable[[], Iterable[int]],
        unix_ms: Callable[[], int],
        rng: random.Random,
        request_timeout: float,
        resource: dict[str, str],
    ) -> None:
        self._loop = loop
        self._client = client
        self._collection = collection
        self._nodes = nodes
        self._unix_ms = unix_ms
        self._rng = rng
        self._request_timeout = request_timeout
        self._resource = resource
        self._instance_id = _ZERO_ID
        self._subscription: Subscription | None = None
        self._interval = DEFAULT_INTERVAL_S
        self._failures = 0
        self._refused_codecs: set[int] = set()
        self._started_ns = self._last_ns = unix_ms() * 1_000_000
        self._pushed_at = loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._in_flight = False
        self._last_push: asyncio.Future[None] | None = None
        self.waiting = True
        self.ended = False

    def wake(self) -> None:
        """Send the request that is due if a connection accepts it."""
        if self.waiting and not self.ended and not self._in_flight:
            self._guarded(self._send)

    def close(self) -> None:
        """Send nothing more."""
        self.ended, self.waiting = True, False
        self._stop_timer()

    def terminate(self) -> asyncio.Future[None] | None:
        """Push the last values if there is a subscription and a connection, then stop.

        Returns:
            A future that is done when the push has ended; None if nothing is sent.
        """
        subscription, ended = self._subscription, self.ended
        self.close()
        connection = None if ended or subscription is None else self._connection()
        if connection is None or subscription is None or not subscription.requested:
            return None
        self._last_push = self._loop.create_future()
        self._guarded(lambda: self._push(connection, subscription, terminating=True))
        return self._last_push

    def _guarded(self, step: Callable[[], None]) -> None:
        """Run a step. If it raises, telemetry ends and the producer continues."""
        try:
            step()
        except Exception as error:
            logger.warning(
                "pushing metrics failed and is given up", exc_info=True,
                extra=log_fields("telemetry_failed", error=error),
            )  # fmt: skip
            self.close()
            self._finished()

    # -- schedule -------------------------------------------------------------------------------

    def _after(self, seconds: float) -> None:
        self._stop_timer()
        if not self.ended:
            self._timer = self._loop.call_later(max(seconds, LEAST_INTERVAL_S), self._due)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _due(self) -> None:
        self._timer = None
        self.waiting = True
        self.wake()

    # -- sending ----------------------------------------------------------------------------------

    def _connection(self) -> ReadyConnection | None:
        """Return an open connection to a random broker that supports telemetry, or None."""
        now = self._loop.time()
        able = [
            node
            for node in self._nodes()
            if self._client.version_range(node, API_KEY) and self._client.can_send(node, now)
        ]
        return self._client.ready(self._rng.choice(able), now) if able else None

    def _send(self) -> None:
        connection = self._connection()
        if connection is None:
            return
        self.waiting = False
        if self._subscription is None:
            request = GetTelemetrySubscriptionsRequest(client_instance_id=self._instance_id)
            self._request(connection, request, self._on_subscription)
        else:
            self._push(connection, self._subscription)

    def _request(
        self,
        connection: ReadyConnection,
        request: GetTelemetrySubscriptionsRequest | PushTelemetryRequest,
        on_done: Callable[[ClientResponse], None],
    ) -> None:
        self._in_flight = True
        timeout = self._request_timeout
        connection.send(
            request,
            lambda response: self._guarded(lambda: on_done(response)),
            self._loop.time(),
            timeout=timeout,
        )

    def _push(
        self, connection: ReadyConnection, subscription: Subscription, *, terminating: bool = False
    ) -> None:
        codec_id, data = self._compressed(self._payload(subscription), subscription)
        if len(data) > subscription.max_bytes:  # the limit applies to the compressed metrics
            logger.debug(
                "telemetry of %d bytes is not pushed: the broker takes %d",
                len(data), subscription.max_bytes,
                extra=log_fields("telemetry_refused", node_id=connection.node_id, size=len(data)),
            )  # fmt: skip
            self._finished()
            self._after(subscription.interval)
            return
        request = PushTelemetryRequest(
            client_instance_id=self._instance_id,
            subscription_id=subscription.id,
            terminating=terminating,
            compression_type=codec_id,
            metrics=data,
        )
        self._request(connection, request, self._on_last_pushed if terminating else self._on_pushed)

    def _payload(self, subscription: Subscription) -> bytes:
        now, now_ns = self._loop.time(), self._unix_ms() * 1_000_000
        elapsed, self._pushed_at = now - self._pushed_at, now
        points = self._collection.points(subscription.requested, elapsed, delta=subscription.delta)
        start_ns = self._last_ns if subscription.delta else self._started_ns
        self._last_ns = now_ns
        return encode_metrics(
            points, start_ns=start_ns, time_ns=now_ns, delta=subscription.delta,
            resource=self._resource, scope="aiokprod", version=__version__,
        )  # fmt: skip

    def _compressed(self, metrics: bytes, subscription: Subscription) -> tuple[int, bytes]:
        """Return the codec id and the data, compressed with the first accepted codec that is
        installed and was not rejected; (0, metrics) if there is none."""
        for codec_id in subscription.codecs:
            if codec_id and codec_id not in self._refused_codecs:
                try:
                    return codec_id, codec_by_id(codec_id).compress(metrics)
                except (ConfigError, DecodeError):
                    continue
        return 0, metrics

    # -- responses --------------------------------------------------------------------------------

    def _on_subscription(self, response: ClientResponse) -> None:
        self._in_flight = False
        body = response.body
        if response.error is not None or body.error_code != Code.NONE:
            self._failed(response)
            return
        self._failures = 0
        self._instance_id = body.client_instance_id
        # As in Java, replace an invalid interval with the default, so that pushes are not sent back
        # to back.
        interval = body.push_interval_ms / 1000
        self._interval = max(interval, LEAST_INTERVAL_S) if interval > 0 else DEFAULT_INTERVAL_S
        requested = tuple(body.requested_metrics)
        if not requested:
            self._after(self._interval)  # request it again then: there may be a subscription
            return
        self._subscription = Subscription(
            body.subscription_id, tuple(body.accepted_compression_types), self._interval,
            body.telemetry_max_bytes, body.delta_temporality, requested,
        )  # fmt: skip
        # Choose a random delay, so that clients that start at the same time do not push at the same
        # time.
        self._after(self._interval * self._rng.uniform(0.5, 1.5))

    def _on_last_pushed(self, response: ClientResponse) -> None:
        self._finished()

    def _on_pushed(self, response: ClientResponse) -> None:
        self._in_flight = False
        if self.ended:
            return
        if response.error is not None or response.body.error_code != Code.NONE:
            if response.body is not None:
                self._refused(response.body)
            self._failed(response)
            return
        self._failures = 0
        self._after(self._interval)

    def _refused(self, body: Any) -> None:
        subscription = self._subscription
        if body.error_code == Code.UNSUPPORTED_COMPRESSION_TYPE and subscription is not None:
            self._refused_codecs.update(subscription.codecs)

    def _finished(self) -> None:
        if self._last_push is not None and not self._last_push.done():
            self._last_push.set_result(None)

    def _failed(self, response: ClientResponse) -> None:
        """Wait, then request the subscription again; after some errors stop permanently."""
        code = Code.NONE if response.body is None else response.body.error_code
        logger.debug(
            "broker %d refused telemetry: %s", response.node_id, response.error or f"error {code}",
            extra=log_fields(
                "telemetry_refused", error=response.error, node_id=response.node_id,
                code=error_code(code).name,
            ),
        )  # fmt: skip
        self._failures += 1
        self._subscription = None
        if code in _FINAL or isinstance(response.error, UnsupportedVersion):
            self.close()
        elif code in _AT_ONCE and self._failures == 1:
            self._after(0)
        else:
            self._after(self._interval)
