"""Measures how long authentication blocks the event loop, even with hostile brokers.

    python -m benchmarks.authentication             20 rounds of every mechanism
    python -m benchmarks.authentication --check     exit 1 if one blocked the loop for over 50 ms

The brokers are scripted and run on the same loop, so the results include their work. Brokers skip
computations that would take much longer than those of the producer. A timer of 5 ms measures the
lag.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import sys
from collections.abc import Callable
from typing import Any, Final

from aiokprod._net.sasl.scram import MAX_ITERATIONS
from aiokprod.errors import KafkaError
from aiokprod.testing.memory import MemoryNetwork
from benchmarks.lag import LoopLag
from tests.security.sasl_broker import (
    BearerServer,
    PlainServer,
    Refused,
    SaslBroker,
    ScramServer,
    new_producer,
)

LIMIT: Final = 0.05
USER, PASSWORD, TOKEN = "alice", "canary-password", "canary.token"


class Lazy(ScramServer):
    """A broker that requests many SCRAM iterations but skips its own computation."""

    def _final(self, text: str) -> bytes:
        raise Refused("no")


async def give_token() -> str:
    return TOKEN


def scram(digest: str, iterations: int, kind: type[ScramServer] = ScramServer) -> Any:
    return lambda: kind({USER: PASSWORD}, digest, iterations=iterations)


LOGIN: Final = {"sasl_username": USER, "sasl_password": PASSWORD}
CASES: Final[dict[str, tuple[str, Callable[[], Any], dict[str, Any]]]] = {
    "PLAIN": ("PLAIN", lambda: PlainServer({USER: PASSWORD}), LOGIN),
    "OAUTHBEARER": (
        "OAUTHBEARER",
        lambda: BearerServer({TOKEN}),
        {"sasl_token_provider": give_token},
    ),
    "SCRAM-SHA-512, 4096 iterations": ("SCRAM-SHA-512", scram("sha512", 4096), LOGIN),
    "SCRAM-SHA-256, 1 000 000 iterations": (
        "SCRAM-SHA-256",
        scram("sha256", MAX_ITERATIONS, Lazy),
        LOGIN,
    ),
    "SCRAM-SHA-512, 1 000 000 iterations": (
        "SCRAM-SHA-512",
        scram("sha512", MAX_ITERATIONS, Lazy),
        LOGIN,
    ),
    "SCRAM-SHA-512, 1 000 000 000 iterations": (
        "SCRAM-SHA-512",
        scram("sha512", 999_999_999, Lazy),
        LOGIN,
    ),
}


async def authenticate(
    mechanism: str, server: Callable[[], Any], more: dict[str, Any], patience: float
) -> float:
    """Return the worst lag in seconds from the first connection attempt to the end of the first
    call."""
    network = MemoryNetwork()
    broker = SaslBroker(network)
    broker.mechanisms[mechanism] = server
    made = new_producer(network, sasl_mechanism=mechanism, **more)
    with LoopLag() as lag:
        with contextlib.suppress(KafkaError):
            await made.send("t", b"v", timeout=patience)
        await asyncio.sleep(0.01)
    assert broker.exchanges, "nothing was authenticated"
    await made.close(0)
    return lag.worst


async def idle() -> float:
    """Return the worst lag of an idle loop within one second, which the machine causes."""
    with LoopLag() as lag:
        await asyncio.sleep(1.0)
    return lag.worst


def main() -> int:
    parser = argparse.ArgumentParser(description="Lag of the loop during authentication.")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--check", action="store_true", help="exit 1 if the limit is exceeded")
    chosen = parser.parse_args()
    worst = 0.0
    print("| mechanism | median lag ms | worst ms |\n|---|---|---|")
    control = [asyncio.run(idle()) for _ in range(chosen.rounds)]
    print(f"| none | {statistics.median(control) * 1000:.1f} | {max(control) * 1000:.1f} |")
    for name, (mechanism, server, more) in CASES.items():
        patience = 5.0 if "000" in name else 0.2  # shorter if only the topic is missing
        lags = [
            asyncio.run(authenticate(mechanism, server, more, patience))
            for _ in range(chosen.rounds)
        ]
        worst = max(worst, *lags)
        print(f"| {name} | {statistics.median(lags) * 1000:.1f} | {max(lags) * 1000:.1f} |")
    print(f"\nworst {worst * 1000:.1f} ms, limit {LIMIT * 1000:.0f} ms")
    return 1 if chosen.check and worst > LIMIT else 0


if __name__ == "__main__":
    sys.exit(main())
