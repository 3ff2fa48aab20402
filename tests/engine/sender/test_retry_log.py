from __future__ import annotations

from aiokprod._engine.sender.retry_log import RetryLog
from aiokprod.errors import Code, KafkaError, error_code
from tests.engine.engine_harness import EngineHarness
from tests.virtual_time import in_virtual_time


@in_virtual_time
async def test_retries_are_counted_by_code_until_they_are_taken() -> None:
    harness = EngineHarness(partitions=1)
    harness.append(b"v")
    (batch,) = harness.accumulator.incomplete
    log = RetryLog()
    assert RetryLog().last is None
    for code in (Code.NOT_LEADER_OR_FOLLOWER, Code.REQUEST_TIMED_OUT, Code.REQUEST_TIMED_OUT):
        log.note(batch, error_code(code), 1, 7.0)
    assert log.take() == ({"NOT_LEADER_OR_FOLLOWER": 1, "REQUEST_TIMED_OUT": 2}, ["t"])
    assert log.take() == ({}, [])
    assert log.last == ("t-0: REQUEST_TIMED_OUT from broker 1", 7.0)
    batch.fail(KafkaError("done"))
