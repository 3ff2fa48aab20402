"""Checks the arguments of public calls. Errors name the argument, its value and the fix."""

from __future__ import annotations

import dataclasses
import inspect
import math
from typing import TYPE_CHECKING, Any, Final

from aiokprod._config.fields import MISSING_SERVERS, unknown_key
from aiokprod._core.callbacks import is_plain_callable
from aiokprod._net.dialer import TcpDialer
from aiokprod._redaction import redacted
from aiokprod.config import ProducerConfig
from aiokprod.environment import Environment
from aiokprod.errors import ConfigError
from aiokprod.observer import HOOKS
from aiokprod.plugins import METHODS
from aiokprod.records import (
    ProducerRecord,
    checked_headers,
    validate_partition,
    validate_timestamp_ms,
    validate_topic,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiokprod.interceptors import ProducerInterceptor

_INTERCEPTOR_METHODS: Final = ("on_send", "on_acknowledgement", "close")


@redacted(ConfigError)
def checked_config(config: Any, settings: dict[str, Any]) -> ProducerConfig:
    """Return the configuration of a producer: `config`, or one built from keyword settings.

    `settings` is emptied. The traceback of a `ConfigError` contains the caller's frame, whose local
    variables must not hold passwords.
    """
    given = dict(settings)
    settings.clear()
    if config is None:
        known = [setting.name for setting in dataclasses.fields(ProducerConfig)]
        for name in given:
            if name not in known:
                raise unknown_key(name, known)
        if "bootstrap_servers" not in given:
            raise ConfigError(MISSING_SERVERS)
        return ProducerConfig(**given)
    if not isinstance(config, ProducerConfig):
        raise ConfigError(
            f"config must be a ProducerConfig, not {type(config).__name__}; "
            + (
                f"name the setting: Producer(bootstrap_servers={config!r})"
                if isinstance(config, str) and "@" not in config and len(config) < 200
                else "for a mapping use ProducerConfig.from_mapping(...)"
            )
        )
    if given:
        raise ConfigError(
            f"give either a ProducerConfig or keyword settings, not both: {sorted(given)}"
        )
    return config


def tcp_environment(config: ProducerConfig) -> Environment:
    """Create the default environment: TCP, the system clock, unseeded randomness."""
    return Environment(
        TcpDialer(
            send_buffer_bytes=config.send_buffer_bytes,
            receive_buffer_bytes=config.receive_buffer_bytes,
        )
    )


def checked_interceptors(interceptors: Any) -> tuple[ProducerInterceptor, ...]:
    """Return the interceptors, after checking that each has all methods of an interceptor."""
    try:
        found = tuple(interceptors)
    except TypeError:
        raise ConfigError(
            f"interceptors must be a list of interceptor objects, not {type(interceptors).__name__}"
        ) from None
    for number, interceptor in enumerate(found):
        _check_methods(f"interceptors[{number}]", interceptor, _INTERCEPTOR_METHODS)
    return found


def checked_plugins(plugins: Any) -> tuple[Any, ...]:
    """Return the plug-ins, after checking that each has all methods of `RecordPlugin`, or hooks of
    `Observer`, or both."""
    try:
        found = tuple(plugins)
    except TypeError:
        raise ConfigError(
            f"plugins must be a list of plug-ins, not {type(plugins).__name__}"
        ) from None
    for number, plugin in enumerate(found):
        name = f"plugins[{number}]"
        if is_record_plugin(plugin):
            _check_methods(name, plugin, METHODS)
            if any(inspect.iscoroutinefunction(getattr(plugin, method)) for method in METHODS):
                raise ConfigError(
                    f"{name} of type {type(plugin).__name__} has asynchronous methods: use plain "
                    "ones"
                )
        elif isinstance(plugin, type) or not has_hooks(plugin):
            raise ConfigError(
                f"{name} of type {type(plugin).__name__} must be an object with the methods "
                f"{', '.join(METHODS)}, or with methods of Observer"
            )
    return found


def is_record_plugin(plugin: object) -> bool:
    """Return True if an entry of `plugins` has any method of `RecordPlugin`."""
    return any(hasattr(plugin, method) for method in METHODS)


def has_hooks(plugin: object) -> bool:
    """Return True if an entry of `plugins` has any hook of `Observer`."""
    return any(callable(getattr(plugin, hook, None)) for hook in HOOKS)


def check_plugins(observer: Any, environment: Any) -> None:
    """Reject an observer without any hook, and an environment that is not an `Environment`."""
    if observer is not None:
        _check_observer(observer)
    if environment is not None and not isinstance(environment, Environment):
        raise ConfigError(
            f"environment must be an Environment, not {type(environment).__name__}; leave it out "
            "to use the network"
        )


def _check_observer(observer: Any) -> None:
    found = [getattr(observer, hook, None) for hook in HOOKS]
    if isinstance(observer, type) or not any(map(callable, found)):
        raise ConfigError(
            f"observer of type {type(observer).__name__} must be an object with some of the "
            f"methods {', '.join(HOOKS)}"
            + ("; pass an instance" if isinstance(observer, type) else "; it has none of them")
        )
    for hook, method in zip(HOOKS, found, strict=True):
        if method is not None and not callable(method):
            raise ConfigError(f"observer of type {type(observer).__name__}: {hook} is not a method")


def _check_methods(name: str, plugin: Any, methods: Sequence[str]) -> None:
    missing = [method for method in methods if not callable(getattr(plugin, method, None))]
    if isinstance(plugin, type) or missing:
        raise ConfigError(
            f"{name} of type {type(plugin).__name__} must be an object with the methods "
            f"{', '.join(methods)}"
            + (f"; {', '.join(missing)} missing" if missing else "; pass an instance")
        )


_FLOAT_BITS: Final = 1023
"""Every int with at most this number of bits can be converted to a float."""


def check_timeout(call: str, timeout: Any, *, zero: bool = True) -> None:
    """Check that a timeout is None or a number of seconds ≥ 0 (> 0 without `zero`)."""
    if timeout is None:
        return
    number = not isinstance(timeout, bool) and isinstance(timeout, (int, float))
    if number and isinstance(timeout, int) and timeout.bit_length() > _FLOAT_BITS:
        raise ConfigError(
            f"{call}: timeout is an int of {timeout.bit_length()} bits, which is not a number of "
            "seconds; use None or math.inf for no limit"
        )
    if not number or math.isnan(timeout) or timeout < 0 or (timeout == 0 and not zero):
        raise ConfigError(
            f"{call}: timeout must be a number of seconds {'≥' if zero else '>'} 0 or None, not "
            f"{timeout!r}"
        )


def check_on_delivery(call: str, on_delivery: Any) -> None:
    """Check that `on_delivery` is None or a plain (not asynchronous) callable."""
    if on_delivery is None:
        return
    if not is_plain_callable(on_delivery):
        raise ConfigError(
            f"{call}: on_delivery must be a plain callable that takes (metadata, error), not "
            f"{on_delivery!r}"
        )


def checked_topics(call: str, topics: Any) -> list[str]:
    """Check a list of topic names and return it."""
    if isinstance(topics, (str, bytes)):
        raise ConfigError(f"{call} takes a list of topics, not {topics!r}: write [{topics!r}]")
    try:
        names = list(topics)
    except TypeError:
        raise ConfigError(f"{call} takes a list of topics, not {type(topics).__name__}") from None
    return [validate_topic(name) for name in names]


def checked_record(
    topic: Any,
    value: Any,
    key: Any,
    partition: Any,
    timestamp_ms: Any,
    headers: Any,
) -> ProducerRecord[Any, Any]:
    """Check the arguments of a call and return them as a record.

    Raises:
        ConfigError: an argument is invalid. The text names the argument, its value and the fix.
    """
    validate_topic(topic)
    if partition is not None:
        validate_partition(partition)
    if timestamp_ms is not None:
        validate_timestamp_ms(timestamp_ms)
    return ProducerRecord(topic, value, key, partition, timestamp_ms, checked_headers(headers))
