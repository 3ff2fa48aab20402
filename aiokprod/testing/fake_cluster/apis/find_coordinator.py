"""FindCoordinator (10): assigns a coordinator to each key. The choice is deterministic."""

from __future__ import annotations

import zlib

from aiokprod._errors import Code
from aiokprod._wire.messages.find_coordinator import Coordinator, FindCoordinatorResponse
from aiokprod.testing.fake_cluster.apis.answer import Answer
from aiokprod.testing.fake_cluster.broker import FakeBroker
from aiokprod.testing.fake_cluster.framing import Request

BATCHED_FROM = 4


def handle(broker: FakeBroker, request: Request) -> Answer:
    """Find the coordinator of each key."""
    if request.version >= BATCHED_FROM:
        found = [_coordinator(broker, key) for key in request.body.coordinator_keys]
        return Answer(FindCoordinatorResponse(coordinators=found))
    one = _coordinator(broker, request.body.key)
    return Answer(
        FindCoordinatorResponse(
            error_code=one.error_code, node_id=one.node_id, host=one.host, port=one.port
        )
    )


def error(broker: FakeBroker, request: Request, code: int) -> FindCoordinatorResponse:
    """Return a response with this error code for every key."""
    if request.version >= BATCHED_FROM:
        keys = request.body.coordinator_keys
        return FindCoordinatorResponse(coordinators=[_none(key, code) for key in keys])
    return FindCoordinatorResponse(error_code=code, node_id=-1)


def coordinator_of(broker: FakeBroker, key: str) -> FakeBroker | None:
    """Return the current coordinator of a group or transactional id, or None if there is none."""
    chosen = broker.cluster.coordinator_ids
    brokers = [one for one in broker.cluster.living() if chosen is None or one.broker_id in chosen]
    return brokers[zlib.crc32(key.encode()) % len(brokers)] if brokers else None


def refusal(broker: FakeBroker, key: str) -> Code:
    """Return NONE if this broker is the coordinator of the key, otherwise NOT_COORDINATOR."""
    return Code.NONE if coordinator_of(broker, key) is broker else Code.NOT_COORDINATOR


def _coordinator(broker: FakeBroker, key: str) -> Coordinator:
    chosen = coordinator_of(broker, key)
    if chosen is None:
        return _none(key, Code.COORDINATOR_NOT_AVAILABLE)
    return Coordinator(key=key, node_id=chosen.broker_id, host=chosen.host, port=chosen.port)


def _none(key: str, code: int) -> Coordinator:
    return Coordinator(key=key, node_id=-1, host="", port=-1, error_code=code)
