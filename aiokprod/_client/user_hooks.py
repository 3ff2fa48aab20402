"""The objects that the user passes to a producer: serializers, partitioner, interceptors, plug-ins
and observer.

Each object may have methods `configure(config)` and `close()`. Both are called once per object,
even if the object has several roles. The producer's constructor calls `configure`. `close` is
called when the producer is closed, or at once if the constructor fails.

Source: Java `AbstractConfig.getConfiguredInstance`, `KafkaProducer`.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterable

from aiokprod._log_fields import log_fields
from aiokprod.config import ProducerConfig
from aiokprod.errors import ConfigError

logger = logging.getLogger(__name__)


class UserHooks:
    """The user's objects, without None and duplicates, in the order in which they are configured
    and closed."""

    def __init__(self, objects: Iterable[object]) -> None:
        distinct = {id(one): one for one in objects if one is not None}
        self._open = list(distinct.values())

    def configure(self, config: ProducerConfig) -> None:
        """Call `configure(config)` on each object that has this method.

        If a call fails, the object and all objects before it are closed. Later objects are not
        closed, because they were not configured.

        Raises:
            ConfigError: `configure` of an object failed (with the error as cause) or is
                asynchronous.
        """
        for number, plugin in enumerate(self._open):
            name = type(plugin).__name__
            try:
                if not _call(plugin, "configure", config):
                    continue
            except BaseException as error:
                self._close_first(number + 1)
                if not isinstance(error, Exception):
                    raise
                raise ConfigError(f"{name}.configure failed: {error}") from error
            self._close_first(number + 1)
            raise ConfigError(
                f"{name}.configure is asynchronous and cannot be awaited in the producer's "
                "constructor: use a plain method"
            )

    def _close_first(self, count: int) -> None:
        del self._open[count:]
        self.close()

    def close(self) -> None:
        """Call `close()` on each object that has this method. Later calls do nothing.

        Failures are logged, and the other objects are still closed. A BaseException that is not an
        Exception (KeyboardInterrupt) is raised after all objects were closed.
        """
        closing, self._open = self._open, []
        interrupt: BaseException | None = None
        for plugin in closing:
            try:
                if _call(plugin, "close"):
                    logger.warning(
                        "%s.close is asynchronous and was not awaited: use a plain method",
                        type(plugin).__name__,
                        extra=log_fields("user_code_failed", hook="close"),
                    )
            except Exception as error:
                logger.warning(
                    "%s.close failed", type(plugin).__name__, exc_info=True,
                    extra=log_fields("user_code_failed", error=error, hook="close"),
                )  # fmt: skip
            except BaseException as error:
                interrupt = interrupt or error
        if interrupt is not None:
            raise interrupt


def _call(plugin: object, name: str, *arguments: object) -> bool:
    """Call the method, if any. Return True if it is asynchronous; its coroutine is not run."""
    method = getattr(plugin, name, None)
    if not callable(method):
        return False
    result = method(*arguments)
    if inspect.iscoroutine(result):
        result.close()
        return True
    return False
