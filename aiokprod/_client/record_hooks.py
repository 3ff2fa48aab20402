"""Reports single records to interceptors, plug-ins and the observer. Code that runs for every
record is compiled (`HookCalls`)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

from aiokprod._core.hooks import HookCalls
from aiokprod._core.record_fields import record_size_bound
from aiokprod._log_fields import log_fields
from aiokprod.errors import KafkaError, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiokprod._core.hooks import HookedRecord
    from aiokprod._core.serialization import SerializedRecord
    from aiokprod.interceptors import InterceptorChain
    from aiokprod.observer import Observer
    from aiokprod.plugins import RecordPlugin
    from aiokprod.records import Header

logger = logging.getLogger(__name__)


class RecordHooks(HookCalls):
    """Calls the interceptors and plug-ins of one producer, and its observer for refused records.

    Args:
        on_failure: called with the plug-in and the method name after each exception raised by a
            plug-in.
    """

    def __init__(
        self,
        interceptors: InterceptorChain | None,
        plugins: tuple[RecordPlugin, ...],
        observer: Observer,
        on_failure: Callable[[object, str], None] | None = None,
    ) -> None:
        super().__init__(interceptors, plugins)
        self._on_failure = on_failure
        self._observer = observer
        self._failed: set[tuple[int, str]] = set()

    def refused(
        self,
        topic: str,
        partition: int | None,
        record: SerializedRecord | None,
        error: BaseException,
    ) -> None:
        """Report a record that failed before it was in a batch.

        Args:
            record: the results of its preparation so far, or None.
        """
        own = located(_as_kafka_error(error), topic, partition)
        self._observer.on_record_refused(own)
        if record is not None and record.hooked is not None:
            self.end(record.hooked, topic, partition, own)

    def given_up(self, hooked: HookedRecord, error: BaseException) -> None:
        """Report a record whose interceptor raised a BaseException that is not an `Exception`."""
        self._end_given_up(hooked, located(_as_kafka_error(error), hooked.topic, hooked.partition))

    def dropped(self, hooked: HookedRecord) -> None:
        """Report a record whose call was deleted before it ended, such as a coroutine that was
        cancelled before it ran. May be called from any thread."""
        if self.loop is None:
            return
        error = KafkaError("the send was given up before it ran", outcome=Outcome.NOT_SENT)
        error = located(error, hooked.topic, hooked.partition)
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(self._end_given_up, hooked, error)

    def _end_given_up(self, hooked: HookedRecord, error: KafkaError) -> None:
        self._observer.on_record_refused(error)
        self.end(hooked, hooked.topic, hooked.partition, error)

    def withdrawn_error(self, topic: str, partition: int) -> KafkaError:
        """Return the error of a record that was withdrawn from its batch."""
        return located(_as_kafka_error(asyncio.CancelledError()), topic, partition)

    def failed(self, plugin: object, method: str, error: Exception) -> None:
        """Count and log an exception raised by a plug-in. It is otherwise ignored."""
        if self._on_failure is not None:
            self._on_failure(plugin, method)
        key = (id(plugin), method)
        if key in self._failed:
            logger.debug(
                "plug-in %s failed in %s again", type(plugin).__name__, method,
                extra=log_fields("user_code_failed", error=error, hook=method),
            )  # fmt: skip
            return
        self._failed.add(key)
        logger.warning(
            "plug-in %s failed in %s; further failures of it are logged at DEBUG only",
            type(plugin).__name__,
            method,
            exc_info=error,
            extra=log_fields("user_code_failed", error=error, hook=method),
        )

    def check_headers(self, headers: tuple[Header, ...]) -> None:
        """Raise ValueError if the headers that a plug-in added cannot be sent."""
        record_size_bound(None, None, headers)


def located(error: KafkaError, topic: str, partition: int | None) -> KafkaError:
    """Return the error with the topic and partition of its record, unless it has a topic."""
    return error if error.topic is not None else error.with_(topic=topic, partition=partition)


def _as_kafka_error(error: BaseException) -> KafkaError:
    """Return the error to report. An exception that is not a `KafkaError` becomes the cause of one
    with outcome NOT_SENT."""
    if isinstance(error, KafkaError):
        return error
    what = (
        "the send was cancelled before the record left"
        if isinstance(error, asyncio.CancelledError)
        else f"{type(error).__name__} while the record was being prepared"
    )
    own = KafkaError(what, outcome=Outcome.NOT_SENT)
    own.__cause__ = error
    return own
