"""Hooks for every record: before it is serialized, and when it has its outcome.

An interceptor's failure is logged and otherwise ignored; it never prevents or changes a send.

Source: Java `ProducerInterceptor`, `ProducerInterceptors`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, Protocol

from aiokprod.errors import KafkaError
from aiokprod.records import ProducerRecord, RecordMetadata

logger = logging.getLogger(__name__)


class ProducerInterceptor(Protocol):
    """Is called for every record of a producer. Methods are synchronous and must not block."""

    def on_send(self, record: ProducerRecord[Any, Any]) -> ProducerRecord[Any, Any]:
        """Return the record to send, the same or a changed one. Runs in the caller's task, before
        serialization; the partition may still be None.

        Not called if the call fails before there is a record: invalid arguments, or a producer that
        is closed or has failed.
        """

    def on_acknowledgement(self, metadata: RecordMetadata | None, error: KafkaError | None) -> None:
        """Called when a record has its outcome, exactly once for each record `on_send` has seen.

        Args:
            metadata: metadata of a delivered record, else None. (Java: metadata with offset -1.)
            error: why the record was not delivered, else None. `error.topic` and `error.partition`
                identify it (the partition is None if none was chosen), and `error.outcome` says
                whether it can be in the log.

        Runs on the event loop, before the callbacks of the delivery.
        """

    def close(self) -> None:
        """The producer was closed; called once, see `aiokprod._client.hooks`."""


class InterceptorChain:
    """Calls interceptors in order; false if there are none."""

    __slots__ = ("_interceptors",)

    def __init__(self, interceptors: Iterable[ProducerInterceptor] = ()) -> None:
        self._interceptors = tuple(interceptors)

    def __bool__(self) -> bool:
        return bool(self._interceptors)

    def on_send(self, record: ProducerRecord[Any, Any]) -> ProducerRecord[Any, Any]:
        """Return the record after all interceptors. One that fails, or returns anything but a
        record, is skipped: the next one gets the previous record."""
        for interceptor in self._interceptors:
            try:
                changed = interceptor.on_send(record)
                if not isinstance(changed, ProducerRecord):
                    raise TypeError(
                        f"on_send returned {type(changed).__name__} instead of a ProducerRecord"
                    )
            except Exception:
                _log_failure(interceptor, "on_send")
            else:
                record = changed
        return record

    def on_acknowledgement(self, metadata: RecordMetadata | None, error: KafkaError | None) -> None:
        """Call all interceptors, even if some of them fail."""
        for interceptor in self._interceptors:
            try:
                interceptor.on_acknowledgement(metadata, error)
            except Exception:
                _log_failure(interceptor, "on_acknowledgement")


def _log_failure(interceptor: ProducerInterceptor, method: str) -> None:
    logger.warning("interceptor %s failed in %s", type(interceptor).__name__, method, exc_info=True)
