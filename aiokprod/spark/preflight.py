"""What can be checked before any task runs: servers, credentials, topic, permission to write."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from aiokprod._engine.identity.coordinators import VersionedRequest
from aiokprod._wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from aiokprod.config import ProducerConfig
from aiokprod.errors import (
    AuthenticationError,
    AuthorizationError,
    Code,
    ConfigError,
    KafkaError,
    KafkaTimeout,
    error_code,
)
from aiokprod.spark.session import Session
from aiokprod.spark.worker_loop import loop_thread

if TYPE_CHECKING:
    from aiokprod.spark.options import SinkOptions

SECONDS: Final = 10.0
"""For the whole check."""
_WRITE: Final = 1 << 4
"""Bit of AclOperation.WRITE."""
_NOT_TOLD: Final = -(2**31)
_PERMISSIONS_FROM: Final = 8
_NAMES_UNTIL: Final = 12
_PASSING: Final = frozenset({Code.LEADER_NOT_AVAILABLE, Code.UNKNOWN_TOPIC_OR_PARTITION})
_PAUSE: Final = 0.2
_VALID: Final = 60.0
"""Seconds; a stream plans each micro-batch anew, twice."""

_passed: dict[SinkOptions, float] = {}
"""When (loop time) the options were last found to be good by this process."""


class PreflightError(RuntimeError):
    """Nothing was sent: what the job needs is not there."""


def preflight(options: SinkOptions) -> None:
    """Check on the driver; returns within about ten seconds.

    Raises:
        PreflightError: names what is missing and the mend.
    """
    thread = loop_thread(options.loop)
    now = thread.loop.time()
    if _passed.get(options, -_VALID) + _VALID > now:
        return
    thread.run(_check(options), SECONDS + 5.0)
    _passed.clear()  # one entry: a planner process serves one query most of the time
    _passed[options] = now


async def _check(options: SinkOptions) -> None:
    config = options.producer_config()
    session = Session(config, patience=0.0)
    servers = ", ".join(config.bootstrap_servers)
    try:
        await _look(session, config, options.topic)
    except AuthenticationError as error:
        raise PreflightError(
            f"aiokprod: {servers}: the credentials were refused: {error}. Check the options "
            "kafka.security.protocol, kafka.sasl.* and kafka.ssl.*; nothing was sent"
        ) from None
    except KafkaTimeout as error:
        raise PreflightError(
            f"aiokprod: {servers}: no broker could be reached from the driver within "
            f"{SECONDS:.0f} s ({error}). Check kafka.bootstrap.servers and "
            "kafka.security.protocol, or set preflight=false; nothing was sent"
        ) from None
    except KafkaError as error:
        raise PreflightError(f"aiokprod: {servers}: {error}; nothing was sent") from None
    finally:
        await session.close(1.0)


async def _look(session: Session, config: ProducerConfig, topic: str | None) -> None:
    deadline = session.loop.time() + SECONDS
    while True:
        response = await session.ask(None, _request(config, topic), deadline)
        if topic is None:
            return
        (found,) = response.body.topics
        if found.error_code == Code.NONE:
            _check_permission(topic, found.topic_authorized_operations)
            return
        late = session.loop.time() + _PAUSE > deadline
        if late or found.error_code not in _PASSING or not config.allow_auto_create_topics:
            raise _refusal(topic, found.error_code, config)
        await asyncio.sleep(_PAUSE)  # just being created, if the brokers do that


def _request(config: ProducerConfig, topic: str | None) -> VersionedRequest:
    def build(version: int) -> MetadataRequest:
        more: dict[str, Any] = {}
        if version >= _PERMISSIONS_FROM:
            more["include_topic_authorized_operations"] = True
        if version >= 4:
            more["allow_auto_topic_creation"] = config.allow_auto_create_topics
        wanted = [] if topic is None else [MetadataRequestTopic(name=topic)]
        return MetadataRequest(topics=wanted, **more)

    return VersionedRequest(MetadataRequest.api_key, build, _NAMES_UNTIL)


def _check_permission(topic: str, operations: int) -> None:
    if operations != _NOT_TOLD and not operations & _WRITE:
        raise AuthorizationError(
            f"topic {topic!r}: these credentials may not write to it; grant WRITE on the topic",
            code=error_code(Code.TOPIC_AUTHORIZATION_FAILED),
        )


def _refusal(topic: str, code: int, config: ProducerConfig) -> KafkaError:
    if code == Code.UNKNOWN_TOPIC_OR_PARTITION:
        why = "the brokers do not create topics" if config.allow_auto_create_topics else (
            "kafka.allow.auto.create.topics is false")  # fmt: skip
        return ConfigError(
            f"topic {topic!r} does not exist, and {why}: create it, or correct the option 'topic'"
        )
    if code == Code.TOPIC_AUTHORIZATION_FAILED:
        return AuthorizationError(
            f"topic {topic!r}: these credentials may not see it; grant DESCRIBE and WRITE on it",
            code=error_code(code),
        )
    return KafkaError(f"topic {topic!r}: {error_code(code).text}", code=error_code(code))
