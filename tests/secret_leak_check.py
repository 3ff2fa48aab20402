"""The canary: a pytest plugin that fails a test if a secret or a payload becomes visible.

Credentials and records of the tests contain the word "canary". The plugin searches for it during
the whole run: in every log record of every logger (with those of `aiokprod` at DEBUG, whatever
level is set), in the text of every error of the package, and in the whole chain of every exception
that a `pytest.raises` catches. Whenever a producer is closed, it searches its repr, `explain()`,
`health()`, `metrics()`, the repr and the pickle of its configuration, and the names of the loop's
tasks.

The local variables of all frames of errors, which error reporters show, are searched for secrets
only (they always contain records). A secret is every text of 6 characters or more that a `Secret`
holds or returns, in clear, base64, hex or percent-encoding. The searched errors are those of the
package, when they are deleted or the test ends; all that `pytest.raises` catches; and those in log
records. Each is searched with its causes and contexts, including suppressed ones. Frames of tests,
examples and the test kit are excluded: they need the secrets.

A run whose taps do not work, or that has searched nothing, fails.

A test about the handling of the text itself, not of a secret, has the marker `canary_is_text`.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import logging
import pickle
import re
import sys
import traceback
import types
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote_plus

import pytest

CANARY: Final = re.compile(r"canary|Y2FuYXJ|jYW5hcn|NhbmFye|63616e617279", re.IGNORECASE)
"""The word in clear, in base64 at each of the three alignments, and in hex."""

_FORCED: Final = logging.DEBUG - 1
"""The level of the package's logger during the run: enables DEBUG and differs from the levels that
tests set."""

_LONGEST: Final = 300
_LOOKED: Final = "_canary_looked"
"""Attribute of errors whose frames were searched at the end of a test; they are not searched again
when the error is deleted."""
_SHORTEST_SECRET: Final = 6
_PART: Final = 48
"""Number of characters, from the middle of a long secret (a PEM key), that are searched for."""
_DEPTH, _ITEMS, _TEXT = 4, 200, 100_000
"""Bounds of the search in one local variable: nesting, items of a container, characters."""

_ROOT: Final = Path(__file__).parent.parent
_APPLICATIONS: Final = tuple(
    f"{_ROOT / folder}/" for folder in ("tests", "examples", "benchmarks", "aiokprod/testing")
)
"""Code that uses the library, and therefore needs secrets."""
_OPAQUE: Final = (
    bool, int, float, complex, type(None), type, types.ModuleType, types.FunctionType,
    types.MethodType, types.BuiltinFunctionType, types.FrameType, types.TracebackType,
)  # fmt: skip
"""Values that are not searched: they contain no text, or their repr contains only code."""

Frame = tuple[str, Mapping[str, Any]]


class Secrets:
    """The texts that no local variable may show. `base` are those of test modules, which are
    created before the first test."""

    def __init__(self) -> None:
        self._base: set[str] = set()
        self._found: set[str] = set()
        self._pattern: re.Pattern[str] | None = None

    def add(self, text: object) -> None:
        """Search for this string from now on. Short strings are ignored: they would be found by
        chance."""
        if not isinstance(text, str) or len(text) < _SHORTEST_SECRET or text in self._found:
            return
        self._found.add(text)
        self._pattern = None

    def keep(self) -> None:
        """Keep the current secrets for the whole run."""
        self._base = set(self._found)

    def reset(self) -> None:
        """Remove the secrets of the previous test. Called before each test."""
        if self._found != self._base:
            self._found = set(self._base)
            self._pattern = None

    @property
    def pattern(self) -> re.Pattern[str] | None:
        """A pattern that matches any secret in any of its forms; None without secrets."""
        if self._pattern is None and self._found:
            forms = {form for text in self._found for form in secret_forms(text)}
            self._pattern = re.compile("|".join(re.escape(form) for form in sorted(forms)))
        return self._pattern


def secret_forms(text: str) -> set[str]:
    """Return the forms of a secret, or of the middle of a long one: in clear and encoded."""
    text = max(text.splitlines(), key=len)
    start = max(0, (len(text) - _PART) // 2)
    part = text[start : start + _PART]
    data = part.encode("utf-8", "surrogatepass")
    forms = {part, repr(part)[1:-1], data.hex()}
    with contextlib.suppress(UnicodeEncodeError):
        forms.add(quote_plus(part))
    for before in range(3):
        # The first and the last characters depend on the neighbouring bytes.
        whole = base64.b64encode(b"\0" * before + data).decode().rstrip("=")
        clean = whole[0 if before == 0 else before + 1 : (before + len(data)) * 8 // 6]
        forms |= {clean, clean.replace("+", "-").replace("/", "_")}
    return {form for form in forms if len(form) >= _SHORTEST_SECRET}


class Guard:
    """Searches texts and stores those with a canary.

    Attributes:
        looked: number of searched texts, by kind.
        leaks: findings since the last `take`.
        secrets: the secrets that are searched for in local variables.
    """

    def __init__(self) -> None:
        self.looked: dict[str, int] = {}
        self.leaks: list[str] = []
        self.secrets = Secrets()
        self._errors: weakref.WeakSet[BaseException] = weakref.WeakSet()

    def look(self, where: str, text: str) -> None:
        """Search one text."""
        self.looked[where] = self.looked.get(where, 0) + 1
        found = CANARY.search(text)
        if found is not None:
            at = max(0, found.start() - 60)
            self.leaks.append(f"{where}: …{text[at : at + _LONGEST]!r}")

    def take(self) -> list[str]:
        """Return the findings and clear them."""
        leaks, self.leaks = self.leaks, []
        return leaks

    def log_record(self, record: logging.LogRecord) -> None:
        """Search a record as any handler may show it: text, raw arguments, traceback."""
        text = f"{record.name} {record.getMessage()} {record.args!r}"
        if record.exc_info and record.exc_info[1] is not None:
            text += chain_text(record.exc_info[1])
            self.frames(record.exc_info[1])
        self.look("log record", text)

    def producer(self, producer: Any) -> None:
        """Search everything that a producer shows about itself."""
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

    # -- local variables ------------------------------------------------------------------------

    def watch(self, error: BaseException) -> None:
        """Search the error when the test ends, unless it has already been deleted."""
        self._errors.add(error)

    def watched(self) -> None:
        """Search the watched errors that still exist."""
        errors = list(self._errors)
        self._errors.clear()
        for error in errors:
            self.frames(error)
            error.__dict__[_LOOKED] = True

    def frames(self, error: BaseException) -> None:
        """Search the local variables of all frames of an error, its causes and its contexts."""
        self.looked["frames of an error"] = self.looked.get("frames of an error", 0) + 1
        pattern = self.secrets.pattern
        if pattern is None:
            return
        seen: set[int] = set()
        for place, variables in frames_of(error):
            for name, value in list(variables.items()):
                for text in texts_of(value, seen):
                    if pattern.search(text):
                        self.leaks.append(
                            f"local variable {name!r} of {place}, error {type(error).__name__}"
                        )
                        break


def errors_behind(error: BaseException) -> Iterator[BaseException]:
    """Yield the error, its causes and contexts (including suppressed ones) and the members of
    groups."""
    seen: set[int] = set()
    rest: list[BaseException | None] = [error]
    while rest:
        one = rest.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        rest += [one.__cause__, one.__context__]
        if isinstance(one, BaseExceptionGroup):
            rest += one.exceptions


def frames_of(error: BaseException) -> Iterator[Frame]:
    """Yield the place and the local variables of each frame outside the tests, then the error's own
    attributes."""
    for one in errors_behind(error):
        trace = one.__traceback__
        while trace is not None:
            code = trace.tb_frame.f_code
            if not code.co_filename.startswith(_APPLICATIONS):
                yield f"{code.co_qualname} ({code.co_filename})", trace.tb_frame.f_locals
            trace = trace.tb_next
        yield f"{type(one).__name__} itself", {"args": one.args, **getattr(one, "__dict__", {})}


def found_in_frames(error: BaseException, *secrets: str) -> list[str]:
    """Return the local variables of an error's frames that show one of these secrets."""
    guard = Guard()
    for secret in secrets:
        guard.secrets.add(secret)
    guard.frames(error)
    return guard.take()


def texts_of(value: Any, seen: set[int], depth: int = _DEPTH) -> Iterator[str]:
    """Yield the texts that an error reporter may show of a value."""
    if isinstance(value, _OPAQUE) or id(value) in seen:
        return
    if isinstance(value, str):
        yield value[:_TEXT]
    elif isinstance(value, (bytes, bytearray)):
        yield bytes(value[:_TEXT]).decode("latin-1")
    elif isinstance(value, (dict, list, tuple, set, frozenset)):
        seen.add(id(value))
        items = list(value.items()) if isinstance(value, dict) else list(value)
        for item in items[:_ITEMS] if depth else ():
            yield from texts_of(item, seen, depth - 1)
    else:
        seen.add(id(value))
        shown = ""
        with contextlib.suppress(Exception):  # partly initialised objects
            shown = repr(value)
        yield shown[:_TEXT]


def chain_text(error: BaseException) -> str:
    """Return the messages, attributes and notes of an exception and of its causes and contexts, as
    tracebacks show them; without their source lines, which are ours."""
    texts: list[str] = []
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
    """The pytest hooks. A run has one guard."""

    def __init__(self) -> None:
        self.guard = Guard()
        self.failures: list[str] = []
        self._undo: list[Callable[[], None]] = []
        self._muted = False
        self._ran = 0
        self._workers = False

    # -- taps -----------------------------------------------------------------------------------

    def install(self) -> None:
        """Tap loggers, errors, secrets and producers."""
        from aiokprod.producer import Producer

        self._tap_loggers()
        self._tap_errors()
        self._tap_secrets()
        guard = self.guard
        close = Producer.close

        @functools.wraps(close)
        async def look_and_close(producer: Any, *args: Any, **options: Any) -> Any:
            guard.producer(producer)
            return await close(producer, *args, **options)

        self._replace(Producer, "close", look_and_close)
        caught = pytest.RaisesExc.__exit__

        def look_at_caught(context: Any, kind: Any, error: Any, trace: Any) -> Any:
            if error is not None:
                self._look_at_caught(error)
            return caught(context, kind, error, trace)

        self._replace(pytest.RaisesExc, "__exit__", look_at_caught)

    def _look_at_caught(self, error: BaseException) -> None:
        from aiokprod.errors import KafkaError

        if isinstance(error, KafkaError):
            self.guard.look("exception chain", chain_text(error))
        self.guard.frames(error)

    def _tap_errors(self) -> None:
        from aiokprod import errors

        guard = self.guard
        begin = errors.KafkaError.__init__

        def begin_and_look(error: Any, message: str, **options: Any) -> None:
            begin(error, message, **options)
            guard.look("error", f"{error!r} {error}")
            guard.watch(error)

        def watching(copy: Any) -> Any:
            @functools.wraps(copy)
            def copy_and_watch(error: Any, **options: Any) -> Any:
                fresh = copy(error, **options)
                guard.watch(fresh)
                return fresh

            return copy_and_watch

        def look_at_dropped(error: Any) -> None:
            if _LOOKED in error.__dict__:
                return
            # Run without the tracer of a test, which may raise: here its exception would be lost.
            tracer = sys.gettrace()
            sys.settrace(None)
            try:
                guard.frames(error)
            finally:
                sys.settrace(tracer)

        self._replace(errors.KafkaError, "__init__", begin_and_look)
        for name in ("copy", "with_"):
            self._replace(errors.KafkaError, name, watching(getattr(errors.KafkaError, name)))
        errors.KafkaError.__del__ = look_at_dropped  # type: ignore[attr-defined]
        self._undo.append(lambda: delattr(errors.KafkaError, "__del__"))

    def _tap_secrets(self) -> None:
        from aiokprod._security.secret import Secret

        secrets = self.guard.secrets
        begin, reveal = Secret.__init__, Secret.reveal

        def begin_and_learn(secret: Any, text: Any) -> None:
            secrets.add(text)
            begin(secret, text)

        def reveal_and_learn(secret: Any) -> str:
            text = reveal(secret)
            secrets.add(text)
            return text

        self._replace(Secret, "__init__", functools.wraps(begin)(begin_and_learn))
        self._replace(Secret, "reveal", functools.wraps(reveal)(reveal_and_learn))

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
        """Remove the taps."""
        while self._undo:
            self._undo.pop()()

    def probe(self) -> list[str]:
        """Show a secret on purpose through each tap; return the names of the taps that missed
        it."""
        from aiokprod._security.secret import Secret
        from aiokprod.errors import KafkaError

        guard = Guard()
        own, self.guard.looked = self.guard.looked, guard.looked
        blind = []
        leaks = self.guard.take()
        secret = Secret("canary-" + "probe")
        for where, show in (
            ("log record", lambda: logging.getLogger("aiokprod.probe").debug(secret.reveal())),
            ("error", lambda: KafkaError(secret.reveal())),
            ("frames of an error", lambda: _raise_from_foreign_frame(secret.reveal())),
        ):
            show()
            if self.guard.take() and where in guard.looked:
                own["probe of a tap"] = own.get("probe of a tap", 0) + 1
            else:
                blind.append(where)
        self.guard.looked, self.guard.leaks = own, leaks
        return blind

    # -- hooks ----------------------------------------------------------------------------------

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        self._workers = bool(getattr(session.config.option, "numprocesses", None))
        self.install()

    def pytest_collection_finish(self) -> None:
        self.guard.secrets.keep()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[Any]:
        self._muted = item.get_closest_marker("canary_is_text") is not None
        self._ran += 1
        self.guard.secrets.reset()
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
        self.guard.watched()
        leaks = list(dict.fromkeys(self.guard.take()))
        if leaks and not self._muted:
            more = f" and {len(leaks) - 3} more" if len(leaks) > 3 else ""
            text = "\n".join(leaks[:3])
            pytest.fail(f"a canary is in\n{text}{more}", pytrace=False)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self.failures += [f"outside of tests: {leak}" for leak in self.guard.take()]
        if not self._workers:
            self.failures += [f"not seen in: {where}" for where in self.probe()]
        self.uninstall()
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            # A worker's exit status is lost, so the controller decides.
            output["canary"] = {
                "looked": self.guard.looked, "failures": self.failures, "ran": self._ran,
            }  # fmt: skip
            return
        if self._ran and not self.guard.looked:
            self.failures.append("not looked for anywhere")
        if self.failures and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """A pytest-xdist worker has ended. After a crash its test has already failed."""
        told = getattr(node, "workeroutput", {}).get("canary")
        if told is None:
            if error is None:
                self.failures.append("not reported on by a worker")
            return
        self._ran += told["ran"]
        self.failures += told["failures"]
        for where, count in told["looked"].items():
            self.guard.looked[where] = self.guard.looked.get(where, 0) + count

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        counts = sorted(self.guard.looked.items())
        seen = ", ".join(f"{where} {count}" for where, count in counts)
        terminalreporter.write_line(f"canaries: looked at {seen or 'nothing'}")
        for failure in self.failures:
            terminalreporter.write_line(f"canary {failure}", red=True)


def _raise_from_foreign_frame(secret: str) -> None:
    """Raise an error of the package with the secret in a frame that is not in a test file."""
    from aiokprod.errors import KafkaError

    source = "def fail(secret):\n    raise error"
    names: dict[str, Any] = {"error": KafkaError("probe")}
    exec(compile(source, "<probe>", "exec"), names)
    with contextlib.suppress(KafkaError):
        names["fail"](secret)
    names.clear()


def wanted_level(logger: logging.Logger) -> int:
    """Return the effective level as if this plugin had not set one."""
    one: logging.Logger | None = logger
    while one is not None:
        if one.level and one.level != _FORCED:
            return one.level
        one = one.parent
    return logging.NOTSET


def pytest_configure(config: pytest.Config) -> None:
    """Register the plugin; `pytest_plugins` names this module."""
    config.addinivalue_line("markers", "canary_is_text: its texts hold the word on purpose")
    plugin = CanaryPlugin()
    if not config.pluginmanager.hasplugin("xdist"):
        plugin.pytest_testnodedown = None  # type: ignore[method-assign, assignment]
    config.pluginmanager.register(plugin, "canary-guard")
