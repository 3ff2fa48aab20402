from __future__ import annotations

import pytest

from aiokprod.config import ProducerConfig
from aiokprod.errors import ConfigError
from aiokprod.plugins import close_plugins, configure_plugins


class Plugin:
    def __init__(self) -> None:
        self.configured: list[ProducerConfig] = []
        self.closed = 0

    def configure(self, config: ProducerConfig) -> None:
        self.configured.append(config)

    def close(self) -> None:
        self.closed += 1


class Broken:
    def configure(self, config: ProducerConfig) -> None:
        raise ZeroDivisionError("no schema")

    def close(self) -> None:
        raise ZeroDivisionError


def test_plugins_are_configured_and_closed_once_each_even_if_passed_twice() -> None:
    config = ProducerConfig(bootstrap_servers="b:1")
    first, second = Plugin(), Plugin()
    configure_plugins([first, second, first, object(), None], config)
    assert first.configured == second.configured == [config]
    close_plugins([first, second, first, object(), None])
    assert (first.closed, second.closed) == (1, 1)


def test_plugin_that_cannot_be_configured_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match=r"Broken.configure failed: no schema") as caught:
        configure_plugins([Broken()], ProducerConfig(bootstrap_servers="b:1"))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_plugin_that_fails_to_close_does_not_keep_others_open(
    caplog: pytest.LogCaptureFixture,
) -> None:
    last = Plugin()
    close_plugins([Broken(), last])
    assert last.closed == 1
    assert caplog.messages == ["Broken.close failed"]
