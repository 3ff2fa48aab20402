"""Errors that leave code which holds secrets: fresh ones, without the frames of that code.

Error reporters print the local variables of every frame of an error and of its causes, also of
those that `from None` hides in a traceback. A password in such a variable is published. Code that
has secrets in variables is therefore called through `redacted`.
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

    A `KafkaError` is raised again as a fresh one: same class, text and attributes, but without
    cause, context and frames. Of any other exception only the class is named, in a new `failure`:
    its text, or an attribute such as `UnicodeEncodeError.object`, may hold a secret. Exceptions: a
    TypeError keeps its class and text where `failure` is `ConfigError` (wrong arguments of a
    constructor), and so does what is not an `Exception` (cancellation, KeyboardInterrupt).

    Args:
        failure: class of the error that stands for foreign exceptions.
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
                # The frame of this function stays in the traceback.
                del args, kwargs
                try:
                    raise fresh
                finally:
                    del fresh  # no cycle of error, traceback and frame

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
    """The error to raise in place of this one, which loses its frames."""
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
    # They may still be referred to, by a future for instance.
    rest: list[BaseException | None] = [error]
    while rest:
        replaced = rest.pop()
        if replaced is not None:
            rest += [replaced.__cause__, replaced.__context__]
            replaced.__traceback__ = replaced.__cause__ = replaced.__context__ = None
    fresh.__cause__ = None
    return fresh
