"""Errors that leave code with secrets contain none of its frames and causes, and no text of another
library."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from aiokprod import (
    AuthenticationError,
    ConfigError,
    Credentials,
    KafkaError,
    Outcome,
    Producer,
    ProducerConfig,
    Secret,
)
from aiokprod._redaction import redacted
from aiokprod._security.jwt_bearer import JwtBearerTokens
from aiokprod._security.msk_iam import AwsCredentials
from aiokprod._security.oidc import OidcTokens
from aiokprod.errors import error_code
from tests.secret_leak_check import errors_behind, found_in_frames

HIDDEN = "hunter2-hunter2"

Call: TypeAlias = Callable[[Callable[[str], BaseException]], None]


def frame_names(error: BaseException) -> list[str]:
    names = []
    for one in errors_behind(error):
        trace = one.__traceback__
        while trace is not None:
            names.append(trace.tb_frame.f_code.co_name)
            trace = trace.tb_next
    return names


@redacted(AuthenticationError)
def raises(make: Callable[[str], BaseException]) -> None:
    secret = HIDDEN
    try:
        raise KeyError(secret)
    except KeyError:
        raise make(secret)  # noqa: B904


@redacted(AuthenticationError)
async def raises_later(make: Callable[[str], BaseException]) -> None:
    await asyncio.sleep(0)
    raises.__wrapped__(make)  # type: ignore[attr-defined]


@pytest.fixture(params=["function", "coroutine"])
def call(request: pytest.FixtureRequest) -> Call:
    if request.param == "function":
        return raises
    return lambda make: asyncio.run(raises_later(make))


def test_redacted_error_of_the_package_keeps_attributes_and_loses_frames_and_causes(
    call: Call,
) -> None:
    def make(secret: str) -> KafkaError:
        error = KafkaError("text", code=error_code(58), outcome=Outcome.NOT_SENT, retriable=True)
        error.__cause__ = ValueError(secret)
        return error

    with pytest.raises(KafkaError, match="text") as caught:
        call(make)
    error = caught.value
    assert type(error) is KafkaError
    assert (error.code, error.outcome, error.retriable) == (error_code(58), Outcome.NOT_SENT, True)
    assert list(errors_behind(error)) == [error]
    assert "raises" not in frame_names(error)
    assert "make" not in frame_names(error)


def test_redacted_foreign_error_is_told_by_its_class_only(call: Call) -> None:
    def make(secret: str) -> UnicodeEncodeError:
        return UnicodeEncodeError("utf-8", secret, 0, 1, secret)

    with pytest.raises(AuthenticationError, match=r"failed with UnicodeEncodeError$") as caught:
        call(make)
    assert list(errors_behind(caught.value)) == [caught.value]
    assert HIDDEN not in repr(caught.value)


def test_redacted_interrupt_is_the_same_one_without_frames(call: Call) -> None:
    interrupt = KeyboardInterrupt("now")
    with pytest.raises(KeyboardInterrupt) as caught:
        call(lambda secret: interrupt)
    if call is raises:  # asyncio.run raises another instance
        assert caught.value is interrupt
    assert "raises" not in frame_names(interrupt)
    assert interrupt.__context__ is None


def test_redacted_cancellation_stays_one_with_its_message() -> None:
    async def main() -> None:
        started = asyncio.Event()

        @redacted(AuthenticationError)
        async def wait() -> None:
            secret = HIDDEN  # noqa: F841
            started.set()
            await asyncio.Event().wait()

        task = asyncio.create_task(wait())
        await started.wait()
        task.cancel("enough")
        with pytest.raises(asyncio.CancelledError, match="enough") as caught:
            await task
        assert "wait" not in frame_names(caught.value)
        with pytest.raises(TimeoutError) as late:
            async with asyncio.timeout(0.001):
                await wait()
        assert "wait" not in frame_names(late.value)

    asyncio.run(main())


def test_redacted_error_is_in_no_cycle() -> None:
    """The error is freed immediately, together with the callers' frames that it references."""
    gc.collect()
    gc.disable()
    try:
        error = None
        try:
            raises(lambda secret: KafkaError("text"))
        except KafkaError as caught:
            error = weakref.ref(caught)
        assert error is not None
        assert error() is None
    finally:
        gc.enable()


CALLS: dict[str, Callable[[], object]] = {
    "wrong setting beside a password": lambda: ProducerConfig(
        bootstrap_servers="b:1",
        sasl_password=HIDDEN,  # type: ignore[arg-type]
        acks=7,
    ),
    "unknown setting beside a password": lambda: Producer(  # type: ignore[call-overload]
        bootstrap_servers="b:1", sasl_password=HIDDEN, no_such_setting=1
    ),
    "password without effect": lambda: Producer(bootstrap_servers="b:1", sasl_password=HIDDEN),
    "no servers": lambda: Producer(sasl_password=HIDDEN),  # type: ignore[call-overload]
    "config and password": lambda: Producer(  # type: ignore[call-overload]
        ProducerConfig(bootstrap_servers="b:1"), sasl_password=HIDDEN
    ),
    "mapping": lambda: ProducerConfig.from_mapping(
        {"bootstrap.servers": "b:1", "sasl.password": HIDDEN, "acks": "7"}
    ),
    "JAAS text": lambda: ProducerConfig.from_mapping(
        {"bootstrap.servers": "b:1", "sasl.jaas.config": HIDDEN}
    ),
    "password of bytes": lambda: ProducerConfig(
        bootstrap_servers="b:1",
        sasl_password=HIDDEN.encode(),  # type: ignore[arg-type]
    ),
    "secret of bytes": lambda: Secret(HIDDEN.encode()),  # type: ignore[arg-type]
    "no user name": lambda: Credentials("", HIDDEN),
    "password in the URL": lambda: OidcTokens(f"https://me:{HIDDEN}@idp/", "me", "x"),
    "http": lambda: OidcTokens("http://idp/", "me", HIDDEN),
    "no claims": lambda: JwtBearerTokens("https://idp/", key=HIDDEN),
    "key and assertion": lambda: JwtBearerTokens("https://idp/", key=HIDDEN, assertion=HIDDEN),
    "AWS key of bytes": lambda: AwsCredentials("AK", HIDDEN.encode()),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", CALLS)
def test_config_error_has_no_secret_in_its_frames(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        CALLS[name]()
    assert list(errors_behind(caught.value)) == [caught.value]
    assert found_in_frames(caught.value, HIDDEN) == []


def test_unknown_argument_of_a_configuration_is_a_type_error_without_secrets() -> None:
    settings: dict[str, Any] = {"sasl_password": HIDDEN, "no_such_setting": 1}
    with pytest.raises(TypeError, match="no_such_setting") as caught:
        ProducerConfig(bootstrap_servers="b:1", **settings)
    assert found_in_frames(caught.value, HIDDEN) == []


def test_secret_file_that_is_not_utf8_does_not_show_itself(tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.write_bytes(HIDDEN.encode() + b"\xff")
    with pytest.raises(ConfigError, match="not UTF-8") as caught:
        Secret.from_file(path).reveal()
    assert list(errors_behind(caught.value)) == [caught.value]
    assert found_in_frames(caught.value, HIDDEN) == []


def test_aws_environment_without_a_key_id_does_not_show_the_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", HIDDEN)
    with pytest.raises(ConfigError, match="not set") as caught:
        AwsCredentials.from_env()
    assert found_in_frames(caught.value, HIDDEN) == []
