"""`Broadcast`: one notification wakes every task that waits at that moment, once."""

from __future__ import annotations

import asyncio
import math

import pytest

from aiokprod._engine.broadcast import Broadcast
from aiokprod.errors import KafkaError, Outcome
from tests.virtual_time import in_virtual_time


@in_virtual_time
async def test_notification_wakes_those_that_wait_and_no_later_ones() -> None:
    broadcast = Broadcast()
    broadcast.notify_all()  # no task waits: the notification is lost
    waiting = [asyncio.ensure_future(broadcast.wait(math.inf)) for _ in range(3)]
    await asyncio.sleep(1)
    assert not any(task.done() for task in waiting)
    broadcast.notify_all()
    late = asyncio.ensure_future(broadcast.wait(math.inf))
    await asyncio.gather(*waiting)
    await asyncio.sleep(1)
    assert not late.done()
    broadcast.notify_all()
    await late


@in_virtual_time
async def test_wait_returns_at_its_deadline() -> None:
    loop = asyncio.get_running_loop()
    start = loop.time()
    await Broadcast().wait(start + 2.5)
    assert loop.time() - start == pytest.approx(2.5)


@in_virtual_time
async def test_each_waiter_raises_a_copy_of_the_error() -> None:
    broadcast = Broadcast()
    waiting = [asyncio.ensure_future(broadcast.wait(math.inf)) for _ in range(2)]
    await asyncio.sleep(0)
    error = KafkaError("refused", outcome=Outcome.NOT_SENT)
    broadcast.notify_all(error)
    first, second = await asyncio.gather(*waiting, return_exceptions=True)
    assert first is not second
    for raised in (first, second):
        assert isinstance(raised, KafkaError)
        assert raised.__cause__ is error
        assert (raised.message, raised.outcome) == ("refused", Outcome.NOT_SENT)


@in_virtual_time
async def test_error_of_one_notification_is_not_raised_by_the_next() -> None:
    broadcast = Broadcast()
    broadcast.notify_all(KafkaError("old"))
    waiting = asyncio.ensure_future(broadcast.wait(math.inf))
    await asyncio.sleep(0)
    broadcast.notify_all()
    await waiting
