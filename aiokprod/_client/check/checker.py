"""Runs the checks of `Producer.check` for each bootstrap server, broker and topic.

Every server is checked with a separate `ClusterClient`. A shared client would use any server that
works, and hide the servers that fail. The client of the first server that responds is used for
brokers and topics.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from typing import TYPE_CHECKING, Final

from aiokprod._client.check.connections import check_versions, explain_failure
from aiokprod._client.check.servers import reach
from aiokprod._client.check.tokens import check_token
from aiokprod._client.check.topics import check_topics
from aiokprod._client.cluster_client import ClusterClient, describe_topics
from aiokprod._config.security import SASL_PROTOCOLS
from aiokprod._log_fields import log_fields
from aiokprod.errors import DialError, Disconnected, KafkaError
from aiokprod.findings import Finding, Severity

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from aiokprod.cluster import Node
    from aiokprod.config import ProducerConfig
    from aiokprod.environment import Environment

logger = logging.getLogger(__name__)

_ATTEMPT_MS: Final = 5_000
"""Maximum timeout of a connection attempt and of a request, in ms."""
_AT_ONCE: Final = 16
"""Maximum number of brokers that are checked concurrently."""
_ADDRESSES: Final = 4
"""Number of attempts to connect to a host name if some of its addresses do not accept
connections."""
_CLOSE_S: Final = 1.0
_OF_ONE_SERVER: Final = ("dns_failed", "unreachable", "no_answer")
"""Codes of findings that are only warnings if another server responds."""

_LEVELS: Final = {
    Severity.ERROR: logging.ERROR, Severity.WARNING: logging.WARNING, Severity.INFO: logging.INFO,
}  # fmt: skip


def log_findings(findings: Iterable[Finding], client_id: str) -> None:
    """Log each finding at the level of its severity."""
    for finding in findings:
        logger.log(
            _LEVELS[finding.severity], "%s: %s. %s", finding.subject, finding.text, finding.remedy,
            extra=log_fields(
                "check_finding", client_id=client_id, finding=finding.code, subject=finding.subject
            ),
        )  # fmt: skip


async def check(
    config: ProducerConfig, environment: Environment, topics: Sequence[str], timeout: float
) -> tuple[Finding, ...]:
    """See `Producer.check`."""
    deadline = asyncio.get_running_loop().time() + timeout
    return await _Checker(config, environment, deadline).run(topics)


class _Checker:
    def __init__(self, config: ProducerConfig, environment: Environment, deadline: float) -> None:
        self._config = config
        self._environment = environment
        self._deadline = deadline
        self._client: ClusterClient | None = None  # for the first server that responded
        self._refused = False  # True once a server or broker has rejected the credentials

    async def run(self, topics: Sequence[str]) -> tuple[Finding, ...]:
        try:
            servers = self._config.bootstrap_addresses()
            parts = await asyncio.gather(*(self._server(*address) for address in servers))
            found = [finding for part in parts for finding in part]
            if self._client is not None:
                # Records can be delivered even if some servers do not respond.
                found = [_not_fatal(finding) for finding in found]
                found += await self._cluster(self._client, topics)
        finally:
            if self._client is not None:
                await self._client.close(_CLOSE_S)
        with contextlib.suppress(TimeoutError):  # a token provider that hangs yields no finding
            async with asyncio.timeout_at(self._deadline):
                found += await check_token(
                    self._config, self._environment.unix_ms, refused=self._refused
                )
        order = list(Severity)
        return tuple(sorted(dict.fromkeys(found), key=lambda each: order.index(each.severity)))

    # -- servers --------------------------------------------------------------------------------

    async def _server(self, host: str, port: int) -> list[Finding]:
        """Check one bootstrap server. If it is the first that responds, keep its client."""
        found = await reach(self._environment.dialer, host, port, self._deadline)
        if any(finding.severity is Severity.ERROR for finding in found):
            return found
        server = f"{host}:{port}" if ":" not in host else f"[{host}]:{port}"
        client = ClusterClient(
            dataclasses.replace(
                self._config,
                bootstrap_servers=[server],
                request_timeout_ms=min(self._config.request_timeout_ms, _ATTEMPT_MS),
                socket_connection_setup_timeout_ms=min(
                    self._config.socket_connection_setup_timeout_ms, _ATTEMPT_MS
                ),
                metadata_recovery_strategy="none",
            ),
            self._environment,
            patience=0.0,
        )
        try:
            failure = await self._answers(client, server, (host, port), several=bool(found))
        except BaseException:
            await client.close(0.0)
            raise
        if failure is None and self._client is None:
            self._client = client
        else:
            await client.close(_CLOSE_S)
        return found if failure is None else [*found, *failure]

    async def _answers(
        self, client: ClusterClient, server: str, address: tuple[str, int], *, several: bool
    ) -> list[Finding] | None:
        """Return None if the server responds to a Metadata request, otherwise the findings.

        Args:
            several: True if some addresses of the name cannot be reached. The client then tries one
                address after another.
        """
        # Try twice, because the broker may have closed the first connection for an unrelated
        # reason, such as a restart.
        attempts = _ADDRESSES if several else 2
        try:
            while True:
                attempts -= 1
                try:
                    connection = await client.connect(-1, self._limit())
                    break
                except (DialError, Disconnected) as error:
                    if not attempts or (isinstance(error, DialError) and not several):
                        raise
            if connection is not None:
                versions = check_versions(client, -1, server)
                if versions:
                    return versions
        except KafkaError as error:
            return [await self._explain(error, server, address)]
        try:
            await describe_topics(client, [], self._limit())
        except KafkaError as error:
            if isinstance(error, Disconnected) and (
                self._config.security_protocol not in SASL_PROTOCOLS
            ):
                secured = "SASL_" + self._config.security_protocol
                return [
                    Finding(
                        "sasl_required", Severity.ERROR, server,
                        "it closes the connection at the first request: the listener requires SASL",
                        f'set security_protocol="{secured}" and sasl_..., or use the port of a '
                        "listener without SASL",
                    )
                ]  # fmt: skip
            return [await self._explain(error, server, address)]
        return None

    # -- the cluster ----------------------------------------------------------------------------

    async def _cluster(self, client: ClusterClient, topics: Sequence[str]) -> list[Finding]:
        """Check the brokers in the metadata, and the topics through a broker without findings."""
        try:
            metadata = client.metadata
            while metadata.only_bootstrap_nodes:  # until the updater has received a response
                await metadata.wait_newer(metadata.snapshot.generation, deadline=self._deadline)
        except KafkaError as error:
            return [_incomplete("the cluster", error)]
        nodes = sorted(client.metadata.snapshot.nodes.values(), key=lambda node: node.id)
        limit = asyncio.Semaphore(_AT_ONCE)

        async def one(node: Node) -> list[Finding]:
            async with limit:
                return await self._broker(client, node)

        parts = await asyncio.gather(*map(one, nodes))
        found = [finding for part in parts for finding in part]
        usable = [node for node, part in zip(nodes, parts, strict=True) if not part]
        if topics and usable:
            try:
                found += await check_topics(client, topics, usable[0].id, self._deadline)
            except KafkaError as error:
                found.append(_incomplete(f"topics {', '.join(topics)}", error))
        return found

    async def _broker(self, client: ClusterClient, node: Node) -> list[Finding]:
        subject = f"broker {node}"
        try:
            await client.connect(node.id, self._limit())
        except DialError as error:
            return [
                Finding(
                    "advertised_listener_unreachable", Severity.ERROR, subject,
                    f"the brokers name this address, which cannot be reached: {error.message}",
                    "set advertised.listeners of the broker to an address that this host can "
                    "resolve and reach",
                )
            ]  # fmt: skip
        except KafkaError as error:
            return [await self._explain(error, subject, (node.host, node.port))]
        return check_versions(client, node.id, subject)

    # -- internals ------------------------------------------------------------------------------

    def _limit(self) -> float:
        """Return the deadline of one attempt."""
        now = asyncio.get_running_loop().time()
        # The deadline is later than the timeouts of the network layer, because its errors are more
        # specific.
        return min(self._deadline, now + 1.5 * _ATTEMPT_MS / 1000)

    async def _explain(self, error: KafkaError, subject: str, address: tuple[str, int]) -> Finding:
        found = await explain_failure(error, subject, address, self._config, self._environment)
        self._refused = self._refused or found.code == "authentication_failed"
        return found


def _not_fatal(finding: Finding) -> Finding:
    if finding.severity is Severity.ERROR and finding.code in _OF_ONE_SERVER:
        return dataclasses.replace(finding, severity=Severity.WARNING)
    return finding


def _incomplete(subject: str, error: KafkaError) -> Finding:
    return Finding(
        "check_incomplete", Severity.WARNING, subject, f"it could not be checked: {error.message}",
        "repeat the check, with a longer timeout if the brokers are slow",
    )  # fmt: skip
