"""The canary sees what it is there for, and only that."""

from __future__ import annotations

import asyncio
import base64
import logging
from typing import Any

import pytest

from aiokprod import KafkaError, Producer, Secret
from tests.canary import Guard, chain_text, wanted_level

WORD = "canary"

# What is found here on purpose must not fail the run.
pytestmark = pytest.mark.canary_is_text


def record(message: str, *args: Any, error: BaseException | None = None) -> logging.LogRecord:
    info = None if error is None else (type(error), error, None)
    return logging.LogRecord("aiokprod.x", logging.DEBUG, __file__, 1, message, args, info)


@pytest.mark.parametrize(
    "text",
    [
        WORD,
        WORD.upper(),
        repr(WORD.encode()),
        *(
            base64.b64encode(b"x" * before + WORD.encode() + b"tail").decode()
            for before in range(3)
        ),
        WORD.encode().hex(),
    ],
)
def test_canary_is_seen_in_clear_base64_and_hex(text: str) -> None:
    guard = Guard()
    guard.look("here", f"before {text} after")
    assert guard.take()
    assert guard.take() == []


def test_canary_is_seen_in_messages_arguments_and_tracebacks_of_records() -> None:
    guard = Guard()
    cause = ValueError(WORD)
    error = RuntimeError("harmless")
    error.__cause__ = cause
    for one in (
        record(f"a {WORD}"),
        record("%s", WORD),
        record("%(known)s", {"known": 1, "hidden": WORD}),
        record("harmless", error=error),
    ):
        guard.log_record(one)
        assert len(guard.take()) == 1
    guard.log_record(record("%d of %d", 1, 2, error=RuntimeError("harmless")))
    assert guard.take() == []


def test_canary_is_seen_in_causes_contexts_groups_and_notes_but_not_in_what_is_suppressed() -> None:
    noted = RuntimeError("harmless")
    noted.add_note(WORD)
    group = ExceptionGroup("harmless", [ValueError("harmless"), KafkaError(WORD[:3])])
    for shown, seen in ((noted, True), (group, False), (ExceptionGroup("x", [noted]), True)):
        assert (WORD in chain_text(shown)) is seen
    for suppressed in (True, False):
        error = RuntimeError("harmless")
        error.__context__ = ValueError(WORD)
        error.__suppress_context__ = suppressed
        assert (WORD in chain_text(error)) is not suppressed


def test_canary_guards_this_run(request: pytest.FixtureRequest) -> None:
    """A debug record, an error and a closed producer of this very test are looked at."""
    plugin: Any = request.config.pluginmanager.get_plugin("canary-guard")
    assert isinstance(plugin.guard, Guard)
    before = dict(plugin.guard.looked)
    logging.getLogger("aiokprod.tests").debug("harmless")
    KafkaError("harmless")
    after = plugin.guard.looked
    for where in ("log record", "error"):
        assert after[where] == before.get(where, 0) + 1
    assert plugin.guard.take() == []
    logging.getLogger("aiokprod.tests").debug(WORD)
    KafkaError(WORD)
    assert len(plugin.guard.take()) == 2


def test_canary_sees_debug_records_of_the_package_but_shows_them_to_nobody_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    logger = logging.getLogger("aiokprod.tests.deep")
    assert wanted_level(logger) == logging.getLogger().level
    logger.debug("not wanted")
    assert caplog.records == []
    caplog.set_level(logging.DEBUG)
    logger.debug("wanted")
    caplog.set_level(logging.ERROR, logger="aiokprod.tests")
    logger.warning("not wanted")
    assert [entry.message for entry in caplog.records] == ["wanted"]


def test_canary_would_find_a_secret_that_a_producer_tells() -> None:
    guard = Guard()

    async def main() -> None:
        made = Producer(
            bootstrap_servers="b:1",
            security_protocol="SASL_SSL",
            sasl_mechanism="PLAIN",
            sasl_username="u",
            sasl_password=Secret(WORD),
        )
        guard.producer(made)
        assert guard.take() == []
        object.__setattr__(made._config, "sasl_username", WORD)
        guard.producer(made)
        assert len(guard.take()) >= 2
        await made.close()

    asyncio.run(main())
