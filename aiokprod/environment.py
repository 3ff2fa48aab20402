"""The network, the clocks and the random source of a producer, as one value that tests replace."""

from __future__ import annotations

import asyncio
import random
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol


class Dialer(Protocol):
    """Resolves names and opens connections. Callers apply timeouts to both methods."""

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

        The transport's flow control must cover all bytes that are still buffered in the process:
        after `set_write_buffer_limits(high=0)` the protocol must be paused exactly while any byte
        is buffered. The TLS transports of asyncio and uvloop do not satisfy this.

        Args:
            tls: complete a TLS handshake with this context before `connection_made` is called.
            server_hostname: the name for which the certificate must be valid.

        Raises:
            DialError: the connection was refused, timed out, or ended during the handshake.
            ssl.SSLError: the handshake failed.
        """

    async def resolve(self, host: str, port: int) -> list[tuple[str, int]]:
        """Return all addresses of a name, in the order in which to try them; never empty.

        Raises:
            DialError: the name has no address.
        """


def unix_ms() -> int:
    """Return the wall clock in Unix ms. Other code, except that for OpenTelemetry, must call this
    function to read the wall clock."""
    return time.time_ns() // 1_000_000


def monotonic() -> float:
    """Return monotonic seconds, for deadlines in threads, which must not read the clock of a
    loop."""
    return time.monotonic()


@dataclass(frozen=True, slots=True)
class Environment:
    """External dependencies of a producer.

    Attributes:
        dialer: resolves names and opens connections.
        unix_ms: wall clock in Unix ms, for timestamps of records and the expiry of tokens.
        rng: random source for jitter and partition choice; seeded in simulations.
        stopwatch: monotonic seconds, to measure how long callers occupy the event loop; the clock
            of the loop itself may have a resolution of only 1 ms (uvloop).
    """

    dialer: Dialer
    unix_ms: Callable[[], int] = unix_ms
    rng: random.Random = field(default_factory=random.Random)
    stopwatch: Callable[[], float] = time.perf_counter
