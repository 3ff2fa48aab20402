"""The canary: a pytest plugin that fails a test in which a secret or a payload shows itself.

Credentials and records of the tests contain the word "canary". During the whole run it is looked
for in every log record of every logger (with those of `aiokprod` at DEBUG, whatever level is set),
in the text of every error of the package, in the whole chain of every exception that a
`pytest.raises` catches, and, whenever a producer is closed, in its repr, `explain()`, `health()`,
`metrics()`, the repr and the pickle of its configuration, and the names of the loop's tasks.

A test whose subject is a text of its own choice, not a secret, takes the marker `canary_is_text`.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import pickle
import re
import traceback
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

CANARY: Final = re.compile(r"canary|Y2FuYXJ|jYW5hcn|NhbmFye|63616e617279", re.IGNORECASE)
"""The word in clear, in base64 at each of the three alignments, and in hex."""

_FORCED: Final = logging.DEBUG - 1
"""The level of the package's logger for the run: lets DEBUG through and is told from one a test
sets."""

_LONGEST: Final = 300


class Guard:
    """Looks at texts and remembers those with a canary.

    Attributes:
        looked: kind of text -> how many were looked at.
        leaks: what was found since the last `take`.
    """

    def __init__(self) -> None:
        self.looked: dict[str, int] = {}
        self.leaks: list[str] = []

    def look(self, where: str, text: str) -> None:
        """Search one text."""
        self.looked[where] = self.looked.get(where, 0) + 1
        found = CANARY.search(text)
        if found is not None:
            at = max(0, found.start() - 60)
            self.leaks.append(f"{where}: …{text[at : at + _LONGEST]!r}")

    def take(self) -> list[str]:
        """What was found, once."""
        leaks, self.leaks = self.leaks, []
        return leaks

    def log_record(self, record: logging.LogRecord) -> None:
        """A record as any handler may show it: text, raw arguments, traceback."""
        text = f"{record.name} {record.getMessage()} {record.args!r}"
        if record.exc_info and record.exc_info[1] is not None:
            text += chain_text(record.exc_info[1])
        self.look("log record", text)

    def producer(self, producer: Any) -> None:
        """Everything that a producer tells of itself."""
        self.look("repr of a producer", repr(producer) + str(producer))
        self.look("explain()", producer.explain())
        self.look("health()", repr(producer.health()))
        self.look("metrics()", repr(producer.metrics()))
        config = producer._config
        self.look("repr of a configuration", repr(config) + repr(config.effective()))
        with contextlib.suppress(Exception):  # contexts and callables do not pickle
            self.look("pickle of a configuration", pickle.dumps(config).decode("latin-1"))
        with contextlib.suppress(RuntimeError):  # the child of a fork has no running loop
            self.look("names of tasks", " ".join(task.get_name() for task in asyncio.all_tasks()))


def chain_text(error: BaseException) -> str:
    """Messages, attributes and notes of an exception and all that it came from, as shown by
    tracebacks; without their source lines, which are ours."""
    texts = []
    stack = [traceback.TracebackException.from_exception(error)]
    while stack:
        one = stack.pop()
        texts.extend(one.format_exception_only())
        stack.extend(one.exceptions or ())
        if one.__cause__ is not None:
            stack.append(one.__cause__)
        elif one.__context__ is not None and not one.__suppress_context__:
            stack.append(one.__context__)
    return "\n".join(texts)


class CanaryPlugin:
    """The hooks. One guard for the run."""

    def __init__(self) -> None:
        self.guard = Guard()
        self._undo: list[Callable[[], None]] = []
        self._muted = False

    # -- taps -----------------------------------------------------------------------------------

    def install(self) -> None:
        """Tap loggers, errors and producers."""
        from aiokprod.errors import KafkaError
        from aiokprod.producer import Producer

        self._tap_loggers()
        guard = self.guard
        begin = KafkaError.__init__

        def begin_and_look(error: Any, message: str, **options: Any) -> None:
            begin(error, message, **options)
            guard.look("error", f"{error!r} {error}")

        self._replace(KafkaError, "__init__", begin_and_look)
        close = Producer.close

        @functools.wraps(close)
        async def look_and_close(producer: Any, *args: Any, **options: Any) -> Any:
            guard.producer(producer)
            return await close(producer, *args, **options)

        self._replace(Producer, "close", look_and_close)
        caught = pytest.RaisesExc.__exit__

        def look_at_caught(context: Any, kind: Any, error: Any, trace: Any) -> Any:
            if isinstance(error, KafkaError):
                guard.look("exception chain", chain_text(error))
            return caught(context, kind, error, trace)

        self._replace(pytest.RaisesExc, "__exit__", look_at_caught)

    def _tap_loggers(self) -> None:
        package = logging.getLogger("aiokprod")
        package.setLevel(_FORCED)
        self._undo.append(lambda: package.setLevel(logging.NOTSET))
        call = logging.Logger.callHandlers
        guard = self.guard

        def look_and_call(logger: logging.Logger, record: logging.LogRecord) -> None:
            guard.log_record(record)
            if record.levelno >= wanted_level(logger):
                call(logger, record)

        self._replace(logging.Logger, "callHandlers", look_and_call)

    def _replace(self, owner: Any, name: str, value: Any) -> None:
        before = getattr(owner, name)
        setattr(owner, name, value)
        self._undo.append(lambda: setattr(owner, name, before))

    def uninstall(self) -> None:
        """Take the taps away."""
        while self._undo:
            self._undo.pop()()

    # -- hooks ----------------------------------------------------------------------------------

    def pytest_sessionstart(self) -> None:
        self.install()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[Any]:
        self._muted = item.get_closest_marker("canary_is_text") is not None
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[Any]:
        result = yield
        self._judge()
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Iterator[Any]:
        result = yield
        self._judge()
        return result

    def _judge(self) -> None:
        leaks = self.guard.take()
        if leaks and not self._muted:
            more = f" and {len(leaks) - 3} more" if len(leaks) > 3 else ""
            text = "\n".join(leaks[:3])
            pytest.fail(f"a canary is in\n{text}{more}", pytrace=False)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self.uninstall()
        if self.guard.leaks:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output["canary"] = self.guard.looked

    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """Of pytest-xdist: a worker has ended."""
        for where, count in getattr(node, "workeroutput", {}).get("canary", {}).items():
            self.guard.looked[where] = self.guard.looked.get(where, 0) + count

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        counts = sorted(self.guard.looked.items())
        seen = ", ".join(f"{where} {count}" for where, count in counts)
        terminalreporter.write_line(f"canaries: looked at {seen or 'nothing'}")
        for leak in self.guard.take():
            terminalreporter.write_line(f"canary outside of tests: {leak}", red=True)


def wanted_level(logger: logging.Logger) -> int:
    """The effective level as if this plugin had set none."""
    one: logging.Logger | None = logger
    while one is not None:
        if one.level and one.level != _FORCED:
            return one.level
        one = one.parent
    return logging.NOTSET


def pytest_configure(config: pytest.Config) -> None:
    """Registers the plugin; `pytest_plugins` names this module."""
    config.addinivalue_line("markers", "canary_is_text: its texts hold the word on purpose")
    plugin = CanaryPlugin()
    if not config.pluginmanager.hasplugin("xdist"):
        plugin.pytest_testnodedown = None  # type: ignore[method-assign, assignment]
    config.pluginmanager.register(plugin, "canary-guard")
