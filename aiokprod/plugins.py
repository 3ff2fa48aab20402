"""The optional `configure(config)` and `close()` of serializers, partitioners and observers."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from aiokprod.config import ProducerConfig
from aiokprod.errors import ConfigError

logger = logging.getLogger(__name__)


def configure_plugins(plugins: Iterable[object], config: ProducerConfig) -> None:
    """Call `configure(config)` once on each object that has it, also if it is passed twice.

    Raises:
        ConfigError: one failed; its error is the cause.
    """
    for plugin in _distinct(plugins):
        configure = getattr(plugin, "configure", None)
        if callable(configure):
            try:
                configure(config)
            except Exception as error:
                raise ConfigError(f"{type(plugin).__name__}.configure failed: {error}") from error


def close_plugins(plugins: Iterable[object]) -> None:
    """Call `close()` once on each object that has it. Failures are logged."""
    for plugin in _distinct(plugins):
        close = getattr(plugin, "close", None)
        if callable(close):
            try:
                close()
            except Exception:
                logger.warning("%s.close failed", type(plugin).__name__, exc_info=True)


def _distinct(plugins: Iterable[object]) -> list[object]:
    return list({id(plugin): plugin for plugin in plugins}.values())
