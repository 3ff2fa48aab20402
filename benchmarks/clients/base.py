"""The interface between the worker and a measured client."""

from __future__ import annotations

from array import array
from typing import Protocol

from benchmarks.case import Case
from benchmarks.clients import drivers
from benchmarks.clients.drivers import Call, Limit
from benchmarks.payloads import Payloads


class Client(Protocol):
    """A producer of one case.

    Attributes:
        on_loop: True if the client runs on the event loop, so that the loop lag is measured.
        latencies: latency of every awaited record, s. The worker clears it after the warm-up.
    """

    on_loop: bool
    latencies: array[float]

    async def start(self, servers: str, topic: str) -> None: ...

    async def run(self, limit: Limit) -> int:
        """Send until the limit. Return the number of records once all are acknowledged."""

    async def stop(self) -> None: ...

    def sent(self) -> dict[str, int]:
        """Return the numbers of Produce `requests`, record `batches` and `bytes_sent` so far. The
        dict is empty if the client does not count them."""


class AsyncClient:
    """A client with an awaitable call that submits, and a call that awaits the acknowledgment."""

    on_loop = True

    def __init__(self, case: Case, payloads: Payloads) -> None:
        self.case = case
        self.payloads = payloads
        self.topic = ""
        self.latencies: array[float] = array("d")

    async def run(self, limit: Limit) -> int:
        where = (self.topic, self.case, self.payloads, limit)
        match self.case.scenario:
            case "fire":
                sent = await drivers.fire(self.submit_call(), *where)
                if self.case.settle == "flush":
                    await self.flush()
                return sent
            case "await":
                return await drivers.request(self.send_call(), *where, self.latencies)
            case "paced":
                return await drivers.paced(self.send_call(), *where, self.latencies)
            case "bulk":
                return await self.bulk(limit)
            case _:
                return await self.columns(limit)

    def sent(self) -> dict[str, int]:
        return {}

    def submit_call(self) -> Call:
        raise NotImplementedError

    def send_call(self) -> Call:
        raise NotImplementedError

    async def flush(self) -> None:
        raise NotImplementedError

    async def bulk(self, limit: Limit) -> int:
        raise NotImplementedError

    async def columns(self, limit: Limit) -> int:
        raise NotImplementedError


def share_of(case: Case) -> int:
    """Return the number of records of a bulk call: 100 000, or fewer if they exceed 8 MB."""
    return max(1, min(100_000, 8_000_000 // (case.size + 20)))
