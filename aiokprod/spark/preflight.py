"""Checks on the driver before any task runs: servers, credentials, topic, permission to write,
transaction timeout, and permissions for transactions."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from aiokprod._client.cluster_client import ClusterClient, describe_topic, fence_producer
from aiokprod._log_fields import log_fields
from aiokprod.config import ProducerConfig
from aiokprod.errors import (
    AuthenticationError,
    AuthorizationError,
    Code,
    ConfigError,
    KafkaError,
    KafkaTimeout,
    broker_error,
    error_code,
)
from aiokprod.spark.options import AT_LEAST_ONCE, DEFAULT_TRANSACTION_TIMEOUT_MS, in_options
from aiokprod.spark.worker_loop import loop_thread

if TYPE_CHECKING:
    from aiokprod.spark.options import SinkOptions

logger = logging.getLogger("aiokprod.spark")

SECONDS: Final = 10.0
"""Time limit of the whole check, s."""
_WRITE: Final = 1 << 4
"""Bit of AclOperation.WRITE."""
_NOT_REPORTED: Final = -(2**31)
_PASSING: Final = frozenset({Code.LEADER_NOT_AVAILABLE, Code.UNKNOWN_TOPIC_OR_PARTITION})
_PAUSE: Final = 0.2
_VALID: Final = 60.0
"""Seconds for which a passed check is valid. A stream plans every micro-batch twice."""

_passed: dict[SinkOptions, float] = {}
"""Time (loop time) of the last successful check of the options in this process."""


class PreflightError(RuntimeError):
    """The cluster does not meet a requirement of the job. No record was sent."""


def preflight(options: SinkOptions) -> None:
    """Run the checks. They take about ten seconds at most.

    Raises:
        PreflightError: a check failed. The text names the problem and the fix.
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
    client = ClusterClient(config, patience=0.0)
    servers = ", ".join(config.bootstrap_servers)
    try:
        deadline = client.loop.time() + SECONDS
        await _look(client, config, options.topic, deadline)
        if options.delivery != AT_LEAST_ONCE:
            await _check_transactions(client, config, options, deadline)
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
        text = in_options(str(error))
        raise PreflightError(f"aiokprod: {servers}: {text}; nothing was sent") from None
    finally:
        await client.close(1.0)


async def _look(
    client: ClusterClient, config: ProducerConfig, topic: str | None, deadline: float
) -> None:
    while True:
        code, operations = await describe_topic(
            client, topic, deadline, allow_auto_creation=config.allow_auto_create_topics
        )
        if topic is None:
            return
        if code == Code.NONE:
            _check_permission(topic, operations)
            return
        late = client.loop.time() + _PAUSE > deadline
        if late or code not in _PASSING or not config.allow_auto_create_topics:
            raise _refusal(topic, code, config)
        await asyncio.sleep(_PAUSE)  # the brokers may be creating the topic


def _check_permission(topic: str, operations: int) -> None:
    if operations != _NOT_REPORTED and not operations & _WRITE:
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
            f"topic {topic!r}: these credentials may not describe it; grant DESCRIBE and WRITE on "
            "it",
            code=error_code(code),
        )
    return KafkaError(f"topic {topic!r}: {error_code(code).text}", code=error_code(code))


async def _check_transactions(
    client: ClusterClient, config: ProducerConfig, options: SinkOptions, deadline: float
) -> None:
    """Check the transaction timeout and the permission for transactional ids by an InitProducerId
    with an id that no task uses. Reading the brokers' limit would need a further permission.

    Raises:
        ConfigError: the timeout is longer than the brokers allow.
        AuthorizationError: WRITE or DESCRIBE on transactional ids is missing.
    """
    name = f"{options.transactional_id_prefix}.preflight"
    wanted = config.transaction_timeout_ms
    try:
        code = await fence_producer(client, name, wanted, deadline)
        if code == Code.INVALID_TRANSACTION_TIMEOUT:
            limit = await _longest(client, name, wanted, deadline)
            raise ConfigError(
                f"option 'kafka.transaction.timeout.ms' is {wanted}, the brokers allow {limit} at "
                "most: lower it, or raise transaction.max.timeout.ms of the brokers"
            )
    except KafkaTimeout as error:
        # The first use of transactions creates an internal topic, which may take longer.
        logger.info(
            "the transaction timeout was not checked: %s", error,
            extra=log_fields("spark_preflight_incomplete", error=error),
        )  # fmt: skip
        return
    if code != Code.NONE:
        found = error_code(code)
        hint = f" ({found.spark_hint})" if found.spark_hint else ""
        raise broker_error(code, f"transactional id {name!r}{hint}")


async def _longest(client: ClusterClient, name: str, refused: int, deadline: float) -> int:
    """Find the brokers' transaction.max.timeout.ms by bisection."""
    allowed = 0
    guess = DEFAULT_TRANSACTION_TIMEOUT_MS  # the default of the brokers' limit
    while allowed + 1 < refused:
        if not allowed < guess < refused:
            guess = (allowed + refused) // 2
        if await fence_producer(client, name, guess, deadline) == Code.NONE:
            allowed = guess
        else:
            refused = guess
        guess = allowed + 1 if allowed == DEFAULT_TRANSACTION_TIMEOUT_MS else -1
    return allowed
