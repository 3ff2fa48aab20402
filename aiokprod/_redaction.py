"""Removes stack frames with secrets from errors.

Error reporters print the local variables of every frame of an error and of its causes, including
causes that `from None` hides in a traceback. They would publish a password in such a variable, so
functions that have secrets in local variables are decorated with `redacted`.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

from aiokprod.errors import ConfigError, KafkaError

P = ParamSpec("P")
R = TypeVar("R")


def redacted(failure: type[KafkaError]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorates a function or coroutine function whose local variables hold secrets.

    A `KafkaError` is replaced by a copy without cause, context and frames. Any other exception is
    replaced by a `failure` that names only its class: its text, or an attribute such as
    `UnicodeEncodeError.object`, may contain a secret. Two kinds keep their class and text: a
    TypeError if `failure` is `ConfigError` (wrong arguments of a constructor), and a BaseException
    that is not an Exception (cancellation, KeyboardInterrupt).

    Args:
        failure: class of the error that replaces exceptions other than `KafkaError`.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        name = function.__qualname__.removesuffix(".__init__")
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def call_async(*args: P.args, **kwargs: P.kwargs) -> Any:
                try:
                    return await function(*args, **kwargs)
                except BaseException as error:
                    fresh = _fresh(error, failure, name)
                # Drop the arguments, because the frame of this function stays in the traceback.
                del args, kwargs
                try:
                    raise fresh
                finally:
                    del fresh  # avoids a reference cycle of error, traceback and frame

            return cast("Callable[P, R]", call_async)

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return function(*args, **kwargs)
            except BaseException as error:
                fresh = _fresh(error, failure, name)
            del args, kwargs
            try:
                raise fresh
            finally:
                del fresh

        return call

    return decorate


def redacted_init(cls: type[R]) -> type[R]:
    """Class decorator: `redacted(ConfigError)` for the constructor that `dataclass` generates."""
    constructor: Any = redacted(ConfigError)(cls.__init__)
    cls.__init__ = constructor  # type: ignore[method-assign]
    return cls


def _fresh(error: BaseException, failure: type[KafkaError], name: str) -> BaseException:
    """Return the error to raise instead of `error`, and remove the frames of `error`."""
    fresh: BaseException
    if isinstance(error, KafkaError):
        fresh = error.copy()
    elif isinstance(error, asyncio.CancelledError) or (
        failure is ConfigError and isinstance(error, TypeError)
    ):
        fresh = type(error)(*error.args)
    elif isinstance(error, Exception):
        fresh = failure(f"{name} failed with {type(error).__name__}")
    else:
        fresh = error
    # The original errors may still be referenced, e.g. by a future.
    rest: list[BaseException | None] = [error]
    while rest:
        replaced = rest.pop()
        if replaced is not None:
            rest += [replaced.__cause__, replaced.__context__]
            replaced.__traceback__ = replaced.__cause__ = replaced.__context__ = None
    fresh.__cause__ = None
    return fresh
