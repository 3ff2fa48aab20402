"""Runs the tasks that dial brokers, at most one per connection, and reports the end of each."""

from __future__ import annotations

import asyncio
import ssl
import traceback
from collections.abc import Callable

from aiokprod._net.channel_states import CloseReason
from aiokprod._net.connection import Connection
from aiokprod._net.connection_states import ClusterConnectionStates
from aiokprod._net.dialer import HandshakeEnded
from aiokprod._net.tls import TlsContexts, tls_failure
from aiokprod.cluster import Node
from aiokprod.environment import Dialer
from aiokprod.errors import AuthenticationError, DialError, KafkaError


class DialTasks:
    """Starts, names, cancels and awaits dial tasks.

    Args:
        on_end: called when the task of a connection has ended for any reason. A failure has already
            been reported to the connection.
        tls: None for listeners without TLS.
    """

    def __init__(
        self,
        dialer: Dialer,
        states: ClusterConnectionStates,
        loop: asyncio.AbstractEventLoop,
        on_end: Callable[[Connection], None],
        tls: TlsContexts | None = None,
    ) -> None:
        self._tls = tls
        self._dialer = dialer
        self._states = states
        self._loop = loop
        self._on_end = on_end
        self._tasks: dict[asyncio.Task[None], Connection] = {}

    def start(self, node: Node, connection: Connection) -> None:
        """Dial in the background. The task fails at the connection's `setup_deadline`."""
        task = self._loop.create_task(
            self._connect(node, connection), name=f"aiokprod-dial-{node.id}"
        )
        self._tasks[task] = connection
        task.add_done_callback(self._done)

    def has(self, connection: Connection) -> bool:
        """Return True if the task of the connection has not ended."""
        return connection in self._tasks.values()

    def cancel(self, connection: Connection) -> None:
        """Cancel the task of a closed connection, unless its transport is established. In that case
        the task ends by itself, and uvloop would never report the end of a transport whose dial was
        cancelled."""
        for task, dialled in self._tasks.items():
            if dialled is connection and not connection.was_up:
                task.cancel()

    async def wait(self) -> None:
        """Wait until all tasks have ended. Cancelling the wait does not cancel the tasks."""
        while self._tasks:
            await asyncio.wait(list(self._tasks))

    async def _connect(self, node: Node, connection: Connection) -> None:
        try:
            async with asyncio.timeout_at(connection.setup_deadline):
                address = self._states.address(node.id)
                if address is None:
                    found = await self._dialer.resolve(node.host, node.port)
                    self._states.resolved(node.id, found)
                    address = self._states.address(node.id)
                if address is None:
                    raise DialError(f"{node.host}:{node.port} has no address")
                await self._open(node, connection, address)
        except HandshakeEnded as error:
            hint = "" if connection.channel.is_kafka else "; is the port a plaintext listener?"
            raise DialError(error.message + hint) from error
        except TimeoutError as error:
            raise DialError("not connected within the setup timeout") from error

    async def _open(self, node: Node, connection: Connection, address: tuple[str, int]) -> None:
        if self._tls is None:
            await self._dialer.connect(lambda: connection, *address)
            return
        context = await self._tls.get()
        try:
            await self._dialer.connect(
                lambda: connection, *address, tls=context, server_hostname=node.host
            )
        except ssl.SSLError as error:
            failure = tls_failure(error, node.host)
            if failure is None:
                raise DialError("the connection ended during the TLS handshake") from error
            raise failure from error

    def _done(self, task: asyncio.Task[None]) -> None:
        """Report the end of an attempt, even if other code cancelled the task."""
        connection = self._tasks.pop(task)
        failure = _failure(task, connection.channel.peer)
        if failure is not None:
            refused = isinstance(failure, AuthenticationError)
            reason = CloseReason.AUTH_FAILED if refused else CloseReason.NEVER_CONNECTED
            connection.fail(reason, failure)
            connection.drop_transport()
        self._on_end(connection)


def _clear_frames(error: BaseException) -> None:
    """Clear the local variables in the frames of an error and of its causes. These variables
    reference the connection, which references the error. Every failed dial would otherwise leave a
    reference cycle that holds a socket."""
    seen: set[int] = set()
    rest: list[BaseException | None] = [error]
    while rest:
        one = rest.pop()
        # A chain of causes may contain a cycle, or be too long for recursion.
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        traceback.clear_frames(one.__traceback__)
        rest += [one.__cause__, one.__context__]
        if isinstance(one, BaseExceptionGroup):
            rest += one.exceptions


def _failure(task: asyncio.Task[None], peer: str) -> KafkaError | None:
    if task.cancelled():
        return DialError(f"{peer}: the attempt to connect was cancelled")
    error = task.exception()
    if error is None:
        return None
    _clear_frames(error)
    if isinstance(error, KafkaError):
        failure: KafkaError = type(error)(f"{peer}: {error.message}")
    else:
        failure = DialError(f"{peer}: {error!r}")
    failure.__cause__ = error
    return failure
