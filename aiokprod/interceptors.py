"""Interceptors, which are called for every record before serialization and after its outcome.

An interceptor's failure is logged and otherwise ignored; it never prevents or changes a send.

Source: Java `ProducerInterceptor`, `ProducerInterceptors`.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterable
from typing import Any, Protocol

from aiokprod._core.hooks import InterceptorCalls
from aiokprod._core.record_fields import record_size_bound
from aiokprod._log_fields import log_fields
from aiokprod.errors import KafkaError
from aiokprod.records import ProducerRecord, RecordMetadata

logger = logging.getLogger(__name__)


class ProducerInterceptor(Protocol):
    """Called for every record of a producer. Methods are synchronous and must not block.

    Methods may send records, with `try_submit` and `submit`.

    If `on_send` raises a BaseException that is not an Exception (KeyboardInterrupt), it propagates
    to the caller, and the record is not sent. If `on_acknowledgement` raises such an exception, it
    is passed to the loop's exception handler.
    """

    def on_send(self, record: ProducerRecord[Any, Any]) -> ProducerRecord[Any, Any]:
        """Return the record to send: the given record or a changed one. Runs in the caller's task,
        before serialization; the partition may still be None.

        Not called if a call fails before its record is created, because of invalid arguments or
        because the producer is closed or has failed.
        """

    def on_acknowledgement(self, metadata: RecordMetadata | None, error: KafkaError | None) -> None:
        """Called when a record has its outcome, exactly once for each call of `on_send`.

        Args:
            metadata: metadata of a delivered record, else None. (Java: metadata with offset -1.)
            error: the error of a record that was not delivered, else None. `error.topic` and
                `error.partition` identify the record (the partition is None if none was chosen),
                and `error.outcome` says whether it can be in the log.

        If the method has a parameter named `headers`, it also gets a tuple of the record's headers
        as a keyword argument, on success and on failure (KIP-512). Declare the method as
        ``def on_acknowledgement(self, metadata, error, headers=())``.

        Runs on the event loop, before the callbacks of the delivery.
        """

    def close(self) -> None:
        """Called once when the producer was closed; see `aiokprod._client.user_hooks`."""


class InterceptorChain(InterceptorCalls):
    """Calls interceptors in order. A chain without interceptors is false."""

    def __init__(self, interceptors: Iterable[ProducerInterceptor] = ()) -> None:
        found = tuple(interceptors)
        super().__init__(found, tuple(map(_takes_headers, found)), ProducerRecord)

    def check(self, record: ProducerRecord[Any, Any]) -> None:
        """Raise an error if an interceptor has returned a record that cannot be sent. The
        constructor of records does not check headers, and may have been bypassed altogether."""
        ProducerRecord.__post_init__(record)
        _ = record.key, record.value
        record_size_bound(None, None, record.headers)

    def failed(self, interceptor: ProducerInterceptor, method: str, error: Exception) -> None:
        """Log an exception raised by an interceptor. It is otherwise ignored."""
        logger.warning(
            "interceptor %s failed in %s", type(interceptor).__name__, method, exc_info=error,
            extra=log_fields("user_code_failed", error=error, hook=method),
        )  # fmt: skip


def _takes_headers(interceptor: ProducerInterceptor) -> bool:
    """Return True if `on_acknowledgement` has a parameter `headers`."""
    try:
        parameters = inspect.signature(interceptor.on_acknowledgement).parameters
    except (TypeError, ValueError):  # some callables written in C have no signature
        return False
    found = parameters.get("headers")
    return found is not None and found.kind in (found.POSITIONAL_OR_KEYWORD, found.KEYWORD_ONLY)
