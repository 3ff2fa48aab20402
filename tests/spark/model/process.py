"""Python processes of Spark in one event loop. Each has its own connections, kept clients and
module variables, and can be killed at any moment as by SIGKILL."""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import random
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pytest

from aiokprod._client.cluster_client import ClusterClient
from aiokprod.environment import Environment
from aiokprod.errors import DialError
from aiokprod.producer import Producer
from aiokprod.spark import driver_commit, transactional_task
from aiokprod.spark.worker_loop import LoopThread

if TYPE_CHECKING:
    import ssl

    from aiokprod.testing.fake_cluster import FakeCluster
    from aiokprod.testing.transports import Link

_current: Final = contextvars.ContextVar["Process"]("process")


class Killed(Exception):
    """The process was killed, so its last action has no result."""


class _Dialer:
    """The network of one process. A dead process has no network."""

    def __init__(self, cluster: FakeCluster, owner: Process, owners: dict[Link, Process]) -> None:
        self._network = cluster.network
        self._owner = owner
        self._owners = owners
        self.links: list[Link] = []
        self.is_cut = False

    async def connect(
        self,
        protocol_factory: Callable[[], asyncio.Protocol],
        host: str,
        port: int,
        *,
        tls: ssl.SSLContext | None = None,
        server_hostname: str | None = None,
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        if self.is_cut:  # a broker does not notice this clean-up, so it waits for its own timeouts
            await asyncio.get_running_loop().create_future()
        found = await self._network.connect(
            protocol_factory, host, port, tls=tls, server_hostname=server_hostname
        )
        (link,) = [one for one in self._network.links[-8:] if one.client is found[0]]
        if self.is_cut:
            link.reset()
            raise DialError("this process was killed")
        self.links.append(link)
        self._owners[link] = self._owner
        return found

    async def resolve(self, host: str, port: int) -> list[tuple[str, int]]:
        return await self._network.resolve(host, port)

    def cut(self, *, lose: bool) -> None:
        """Cut the process off: no byte leaves or reaches it any more. Bytes in its kernel's buffers
        are lost with `lose`. Otherwise they arrive before the end of the stream."""
        self.is_cut = True
        for link in self.links:
            if lose:
                link.reset()
            else:
                link.client.abort()


class _Thread(LoopThread):
    """The virtual event loop in place of a worker's loop thread."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.kept = {}


class Process:
    """A process that runs tasks or commits.

    Attributes:
        role: "worker" or "committer".
        driver: the driver that started it.
        owners: maps each connection to its process.
    """

    def __init__(
        self,
        cluster: FakeCluster,
        owners: dict[Link, Process],
        *,
        name: str,
        role: str,
        driver: object,
        seed: int,
    ) -> None:
        self.name = name
        self.role = role
        self.driver = driver
        self.thread = _Thread()
        self.dialer = _Dialer(cluster, self, owners)
        self.environment = Environment(
            self.dialer, cluster.unix_ms, random.Random(seed), stopwatch=self.thread.loop.time
        )
        self.swept: dict[str, float] = {}
        self.warned: set[object] = set()
        self.is_dead = False
        self.running: dict[asyncio.Task[Any], None] = {}  # in the order of their start
        self._end: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<Process {self.name}{' dead' if self.is_dead else ''}>"

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine in this process."""
        context = contextvars.copy_context()
        context.run(_current.set, self)
        task = self.thread.loop.create_task(coroutine, name=self.name, context=context)
        self.running[task] = None
        task.add_done_callback(lambda ended: self.running.pop(ended, None))
        return task

    def kill(self, *, lose: bool = False) -> None:
        """Kill the process as by SIGKILL. The brokers only see that its connections end."""
        if self.is_dead:
            return
        self.is_dead = True
        self.dialer.cut(lose=lose)
        self._end = self.thread.loop.create_task(self._vanish(), name=f"end of {self.name}")

    async def _vanish(self) -> None:
        """End the coroutines of the dead process without any effect on the brokers."""
        running = list(self.running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await self.thread.drop(lambda key: True)

    async def ended(self) -> None:
        """Wait until all coroutines of the killed process have ended."""
        assert self._end is not None, "kill it first"
        await self._end


async def outcome(process: Process, task: asyncio.Task[Any], limit_s: float) -> Any:
    """Return the result of a coroutine of a process.

    Raises:
        Killed: the process was killed.
        Hang: the coroutine has not ended after `limit_s` seconds.
    """
    await asyncio.wait({task}, timeout=limit_s)
    if process.is_dead or task.cancelled():
        raise Killed(process.name)
    if not task.done():
        raise Hang(f"{process.name} has not ended after {limit_s} s: {task!r}")
    return task.result()


class Hang(AssertionError):
    """A coroutine does not end."""


class _Swept:
    """A proxy for `driver_commit._swept` of the current process."""

    def get(self, key: str, default: float) -> float:
        return _current.get().swept.get(key, default)

    def __setitem__(self, key: str, value: float) -> None:
        _current.get().swept[key] = value


class _Warned:
    """A proxy for `driver_commit._warned` of the current process."""

    def __contains__(self, key: object) -> bool:
        return key in _current.get().warned

    def add(self, key: object) -> None:
        _current.get().warned.add(key)


def install(patch: pytest.MonkeyPatch) -> None:
    """Make the modules of the sink use the network and the variables of the current process."""

    def made(factory: Any, config: Any) -> Any:
        # Set a client id, because the number in the default id would depend on earlier seeds.
        config = dataclasses.replace(config, client_id=config.client_id or "model")
        return factory(config, environment=_current.get().environment)

    for module in (driver_commit, transactional_task):
        patch.setattr(module, "Producer", partial(made, Producer))
        patch.setattr(module, "ClusterClient", partial(made, ClusterClient))
    patch.setattr(driver_commit, "loop_thread", lambda kind: _current.get().thread)
    patch.setattr(driver_commit, "_swept", _Swept())
    patch.setattr(driver_commit, "_warned", _Warned())
