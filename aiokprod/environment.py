"""The outside world as one value: network, clocks, randomness. Tests replace it."""

from __future__ import annotations

import asyncio
import random
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol


class Dialer(Protocol):
    """Names and connections. The caller bounds both by timeouts of its own."""

    async def connect(
        self,
        protocol_factory: Callable[[], asyncio.Protocol],
        host: str,
        port: int,
        *,
        tls: ssl.SSLContext | None = None,
        server_hostname: str | None = None,
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        """Connect to one address.

        The transport's flow control must cover every byte that is still in the process: after
        `set_write_buffer_limits(high=0)` the protocol is paused exactly while there are some. The
        TLS transports of asyncio and uvloop do not satisfy this.

        Args:
            tls: speak TLS before the protocol is told of the connection.
            server_hostname: the name the certificate must be for.

        Raises:
            DialError: refused, unreachable, or ended during the handshake.
            ssl.SSLError: the handshake failed.
        """

    async def resolve(self, host: str, port: int) -> list[tuple[str, int]]:
        """All addresses of a name, in the order to try them; never empty.

        Raises:
            DialError: the name has no address.
        """


def unix_ms() -> int:
    """Wall clock in milliseconds since 1970; the only read of it in the package."""
    return time.time_ns() // 1_000_000


def monotonic() -> float:
    """Seconds of any beginning, for deadlines in threads: a loop's clock must not be read there."""
    return time.monotonic()


@dataclass(frozen=True, slots=True)
class Environment:
    """What a producer takes from outside.

    Attributes:
        dialer: resolves names and opens connections.
        unix_ms: wall clock, read for record timestamps only.
        rng: jitter and partition choice; seeded in simulations.
        stopwatch: s, of any beginning; how long callers use the loop, which its own clock may tell
            in milliseconds only (uvloop).
    """

    dialer: Dialer
    unix_ms: Callable[[], int] = unix_ms
    rng: random.Random = field(default_factory=random.Random)
    stopwatch: Callable[[], float] = time.perf_counter
