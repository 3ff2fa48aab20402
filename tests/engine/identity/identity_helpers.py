"""Helpers for the tests of `_engine.identity`: managers without a driver, and batches."""

from __future__ import annotations

import asyncio

from aiokprod._engine.buffer.producer_batch import ProducerBatch
from aiokprod._engine.identity.transaction_calls import TransactionCalls
from aiokprod._engine.identity.transaction_manager import TransactionManager
from aiokprod._engine.identity.transaction_states import TxnState
from aiokprod._engine.identity.transactional_sequences import TransactionalSequences
from aiokprod.errors import KafkaError
from aiokprod.records import TopicPartition
from tests.engine.engine_harness import EngineHarness


class _AllBut(set[TopicPartition]):
    """Contains every partition that is not in the set."""

    def __contains__(self, key: object) -> bool:
        return not super().__contains__(key)


class RecordingControl:
    """An `EngineControl` without an engine."""

    def __init__(self) -> None:
        self.transaction_open = False
        self.completing = False
        self.sender_wakeups = 0
        self.driver_wakeups = 0
        self.incomplete = False
        self.withdrawn: set[TopicPartition] = set()
        self.version = 1
        self.failed: list[tuple[KafkaError, bool, bool]] = []

    def set_transaction_open(self, is_open: bool) -> None:
        self.transaction_open = is_open

    def set_completing(self, completing: bool) -> None:
        self.completing = completing

    def wake_sender(self) -> None:
        self.sender_wakeups += 1

    def wake_driver(self) -> None:
        self.driver_wakeups += 1

    def has_incomplete(self) -> bool:
        return self.incomplete

    def with_records(self) -> set[TopicPartition]:
        """All partitions that a test checks, except those in `withdrawn`."""
        return _AllBut(self.withdrawn)

    def fail_unsent(self, error: KafkaError, *, with_sequence: bool, in_doubt: bool) -> None:
        self.failed.append((error, with_sequence, in_doubt))

    def transaction_version(self) -> int:
        return self.version


def manager(control: RecordingControl | None = None) -> TransactionManager:
    """Return an uninitialized manager."""
    loop = asyncio.get_running_loop()
    return TransactionManager("id", loop=loop, control=control or RecordingControl())


def calls(made: TransactionManager) -> TransactionCalls:
    return TransactionCalls(made, asyncio.get_running_loop())


def opened(*more: TxnState, control: RecordingControl | None = None) -> TransactionManager:
    """Return a manager in a transaction with producer id 0, after further transitions to `more`."""
    made = manager(control)
    for state in (TxnState.INITIALIZING, TxnState.READY, TxnState.IN_TRANSACTION, *more):
        made._become(state)
    made.tracker.set_producer_id(0, 0)
    return made


def sequences(made: TransactionManager) -> TransactionalSequences:
    return TransactionalSequences(made)


def batches(count: int) -> list[ProducerBatch]:
    """Return batches of one record each for partition 0, without sequences."""
    harness = EngineHarness()
    found: list[ProducerBatch] = []
    for _ in range(count):
        harness.append(b"v")
        found += harness.drain()
    return found
