from __future__ import annotations

import asyncio
import logging

import pytest

from aiokprod._engine.metadata.bootstrap import check_bootstrap
from aiokprod.errors import ConfigError, DialError
from aiokprod.testing.virtual import run

ADDRESSES = [("a", 1), ("b", 2), ("c", 3)]


class Names:
    """Names that resolve after some seconds, fail after some seconds, or never end."""

    def __init__(self, **seconds: float | Exception) -> None:
        self.seconds = seconds
        self.cancelled: list[str] = []

    async def resolve(self, host: str, port: int) -> list[tuple[str, int]]:
        what = self.seconds.get(host)
        if isinstance(what, Exception):
            raise what
        try:
            await asyncio.sleep(what if what is not None else 10_000)
        except asyncio.CancelledError:
            self.cancelled.append(host)
            raise
        if what is not None and what < 0.5:
            raise DialError(f"{host} is not known")
        return [("10.0.0.1", port)]


def check(names: Names, timeout: float = 30.0) -> float:
    """Return the virtual seconds that the check took."""

    async def main() -> float:
        loop = asyncio.get_running_loop()
        start = loop.time()
        await check_bootstrap(ADDRESSES, names, timeout=timeout)
        return loop.time() - start

    return run(main)


def test_check_ends_with_the_first_name_that_resolves() -> None:
    names = Names(a=0.1, b=3.0)
    assert check(names) == pytest.approx(3.0)
    assert names.cancelled == ["c"]


def test_check_logs_names_that_do_not_resolve(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        check(Names(a=0.1, b=0.2, c=1.0))
    assert caplog.messages == [
        "bootstrap server a:1 cannot be resolved: a is not known",
        "bootstrap server b:2 cannot be resolved: b is not known",
    ]


def test_check_without_any_name_that_resolves_names_all_F13() -> None:
    with pytest.raises(ConfigError, match=r"none of a:1, b:2, c:3 could be resolved") as caught:
        check(Names(a=0.1, b=0.2, c=0.3))
    assert isinstance(caught.value.__cause__, DialError)


def test_check_ends_in_bounded_time_F13() -> None:
    names = Names(a=0.1)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        start = loop.time()
        with pytest.raises(ConfigError, match="within 5 s"):
            await check_bootstrap(ADDRESSES, names, timeout=5.0)
        assert loop.time() == start + 5.0

    run(main)
    assert sorted(names.cancelled) == ["b", "c"]


def test_check_raises_a_bug_of_the_resolver_as_it_is() -> None:
    with pytest.raises(ZeroDivisionError):
        check(Names(a=ZeroDivisionError(), b=1.0))


def test_check_cancelled_cancels_the_look_ups() -> None:
    names = Names()

    async def main() -> None:
        task = asyncio.create_task(check_bootstrap(ADDRESSES, names, timeout=5.0))
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(main)
    assert sorted(names.cancelled) == ["a", "b", "c"]
