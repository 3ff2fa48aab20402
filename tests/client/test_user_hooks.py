from __future__ import annotations

import pytest

from aiokprod._client.user_hooks import UserHooks
from aiokprod.config import ProducerConfig
from aiokprod.errors import ConfigError

CONFIG = ProducerConfig(bootstrap_servers="b:1")


class Plugin:
    def __init__(self) -> None:
        self.configured: list[ProducerConfig] = []
        self.closed = 0

    def configure(self, config: ProducerConfig) -> None:
        self.configured.append(config)

    def close(self) -> None:
        self.closed += 1


class Broken(Plugin):
    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def configure(self, config: ProducerConfig) -> None:
        super().configure(config)
        raise self.error

    def close(self) -> None:
        super().close()
        raise self.error


class Asynchronous(Plugin):
    async def configure(self, config: ProducerConfig) -> None:  # type: ignore[override]
        super().configure(config)

    async def close(self) -> None:  # type: ignore[override]
        super().close()


def calls(*plugins: Plugin) -> list[tuple[int, int]]:
    return [(len(plugin.configured), plugin.closed) for plugin in plugins]


def test_plugins_are_configured_and_closed_once_each_in_their_order_even_if_passed_twice() -> None:
    log: list[str] = []

    class Noting(Plugin):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

        def configure(self, config: ProducerConfig) -> None:
            log.append(f"configure {self.name}")

        def close(self) -> None:
            log.append(f"close {self.name}")

    first, second = Noting("first"), Noting("second")
    plugins = UserHooks([first, second, first, object(), None, second])
    plugins.configure(CONFIG)
    plugins.close()
    plugins.close()
    assert log == ["configure first", "configure second", "close first", "close second"]


def test_plugins_get_the_configuration_and_need_no_methods() -> None:
    plugin = Plugin()
    plugins = UserHooks([plugin, len, object(), "text"])
    plugins.configure(CONFIG)
    assert plugin.configured == [CONFIG]
    plugins.close()


def test_plugin_that_cannot_be_configured_is_a_config_error_that_closes_what_was_configured() -> (
    None
):
    """The failed plug-in is closed too, because it may have opened a resource. The plug-ins after
    it are not closed."""
    first, broken, last = Plugin(), Broken(ZeroDivisionError("no schema")), Plugin()
    plugins = UserHooks([first, broken, last])
    with pytest.raises(ConfigError, match=r"Broken.configure failed: no schema") as caught:
        plugins.configure(CONFIG)
    assert caught.value.__cause__ is broken.error
    assert calls(first, broken, last) == [(1, 1), (1, 1), (0, 0)]
    plugins.close()
    assert calls(first, broken, last) == [(1, 1), (1, 1), (0, 0)]


def test_interrupt_in_configure_closes_what_was_configured_and_stays_one() -> None:
    first, broken = Plugin(), Broken(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        UserHooks([first, broken]).configure(CONFIG)
    assert calls(first, broken) == [(1, 1), (1, 1)]


def test_plugin_that_fails_to_close_does_not_keep_others_open(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broken, last = Broken(ZeroDivisionError()), Plugin()
    plugins = UserHooks([broken, last])
    plugins.close()
    assert (broken.closed, last.closed) == (1, 1)
    assert caplog.messages == ["Broken.close failed"]
    plugins.close()
    assert (broken.closed, last.closed) == (1, 1)


def test_interrupt_in_close_is_raised_once_all_are_closed() -> None:
    broken, other, last = Broken(KeyboardInterrupt("1")), Broken(KeyboardInterrupt("2")), Plugin()
    with pytest.raises(KeyboardInterrupt, match="1"):
        UserHooks([broken, other, last]).close()
    assert [broken.closed, other.closed, last.closed] == [1, 1, 1]


def test_asynchronous_configure_is_refused_and_asynchronous_close_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Neither coroutine is awaited, so neither may be ignored silently."""
    first, plugin = Plugin(), Asynchronous()
    with pytest.raises(ConfigError, match=r"Asynchronous.configure is asynchronous"):
        UserHooks([first, plugin]).configure(CONFIG)
    assert calls(first, plugin) == [(1, 1), (0, 0)]
    assert caplog.messages == [
        "Asynchronous.close is asynchronous and was not awaited: use a plain method"
    ]
