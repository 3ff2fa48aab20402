"""Adapts serializers of confluent-kafka, for features that aiokprod's serializers lack: rules,
encryption of fields, and the latest version of a subject."""

from __future__ import annotations

import asyncio
import inspect
import weakref
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, get_args

from aiokprod.errors import ConfigError
from aiokprod.records import Header
from aiokprod.serdes._extras import extra
from aiokprod.serdes._shared_calls import RepeatableProblem
from aiokprod.serdes.registry import TRANSIENT_STATUSES
from aiokprod.serializers import Field, Serialized

__all__ = ["ConfluentSerializer"]


class ConfluentSerializer:
    """Calls a serializer of confluent-kafka.

    An asynchronous serializer (`await AsyncAvroSerializer(...)`) is awaited for each record. A
    synchronous serializer blocks when it has to send a request. Its first call for a topic
    therefore runs in a thread, one call at a time for each event loop. Later calls run on the event
    loop, because the serializer has then cached the schema.

    Args:
        inner: called as `inner(data, context)`; returns bytes, None or an awaitable of either.
        field: "key" or "value".
        always_in_thread: run all calls of a synchronous serializer in a thread. Set this for
            serializers that may send requests later, for instance with `use.latest.version` or
            encryption of fields.

    Raises:
        ConfigError: `inner` is not callable, or confluent-kafka is not installed.
    """

    def __init__(
        self,
        inner: Callable[[Any, Any], Any],
        *,
        field: Field = "value",
        always_in_thread: bool = False,
    ) -> None:
        if not callable(inner):
            raise ConfigError(
                f"ConfluentSerializer(inner=<{type(inner).__name__}>): use a serializer of "
                "confluent-kafka; an asynchronous one must be awaited when it is made"
            )
        if field not in get_args(Field):
            raise ConfigError(f"ConfluentSerializer(field={field!r}): use 'key' or 'value'")
        module = extra(
            "confluent_kafka.serialization", "confluent-kafka", "", "ConfluentSerializer"
        )
        self._context = module.SerializationContext
        self.inner = inner
        self.field: Field = field
        self._always_in_thread = always_in_thread
        call = inner if inspect.isroutine(inner) else type(inner).__call__
        self._is_async = inspect.iscoroutinefunction(call)
        self._ready: set[str] = set()
        self._locks: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = (
            weakref.WeakKeyDictionary()
        )

    def __getstate__(self) -> dict[str, Any]:
        # Leave out the locks, which belong to a loop of this process.
        return {name: value for name, value in self.__dict__.items() if name != "_locks"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._locks = weakref.WeakKeyDictionary()

    def meant_for(self, field: Field) -> None:
        """Check the setting to which the serializer is passed.

        Raises:
            ConfigError: the serializer was created for the other field.
        """
        if field != self.field:
            raise ConfigError(
                f"{field}_serializer=ConfluentSerializer(..., field={self.field!r}): "
                f"set field={field!r}"
            )

    def serialize(
        self, topic: str, headers: Sequence[Header], data: Any
    ) -> Serialized | Awaitable[Serialized]:
        """Return the result of the inner serializer, or an awaitable of the result.

        Raises:
            RepeatableProblem: the registry rejected the request.
            Others: other exceptions raised by the inner serializer.
        """
        context = self._context(topic, self.field, headers)
        if self._is_async:
            return self._awaited(data, context)
        if topic in self._ready and not self._always_in_thread:
            try:
                result: Serialized = self.inner(data, context)
                return result
            except Exception as error:
                failure = _translated(error)
            raise failure
        return self._in_thread(topic, data, context)

    async def _awaited(self, data: Any, context: Any) -> Serialized:
        try:
            result: Serialized = await self.inner(data, context)
            return result
        except Exception as error:
            failure = _translated(error)
        raise failure

    async def _in_thread(self, topic: str, data: Any, context: Any) -> Serialized:
        loop = asyncio.get_running_loop()
        lock = self._locks.get(loop)
        if lock is None:
            lock = self._locks.setdefault(loop, asyncio.Lock())
        async with lock:
            try:
                result: Serialized = await asyncio.to_thread(self.inner, data, context)
            except Exception as error:
                failure = _translated(error)
            else:
                self._ready.add(topic)
                return result
        raise failure


def _translated(error: Exception) -> Exception:
    """Return a `RepeatableProblem` for an error of the registry. Return other errors unchanged."""
    status = getattr(error, "http_status_code", None)
    code = getattr(error, "error_code", None)
    if type(status) is not int:
        return error
    text = "confluent-kafka's client reports an error of the registry"
    problem = RepeatableProblem(f"{text} (status {status}, code {code})")
    problem.retriable = status in TRANSIENT_STATUSES
    return problem
