"""`Engine` connects the buffer and the sender of one producer.

`Runtime` adds the network, the user calls and the tasks. The engine's tests use simulated brokers
instead of a network.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiokprod._engine.buffer.accumulator import RecordAccumulator
from aiokprod._engine.buffer.batch_compressor import BatchCompressor
from aiokprod._engine.buffer.broker_memory_quota import BrokerMemoryQuota
from aiokprod._engine.buffer.buffer_memory import BufferMemory
from aiokprod._engine.buffer.flush import FlushTracker
from aiokprod._engine.sender.sender import Sender

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from concurrent.futures import Executor

    from aiokprod._core.slots import TopicSlot
    from aiokprod._engine.buffer.producer_batch import ProducerBatch
    from aiokprod._engine.buffer.topic_settings import TopicSettingsTable
    from aiokprod._engine.identity.producer_state import ProducerState
    from aiokprod._engine.metadata.cache import Metadata
    from aiokprod._engine.ports import BrokerClient
    from aiokprod._engine.wakeup import WakeupEvent
    from aiokprod._histogram import Histogram
    from aiokprod.config import ProducerConfig
    from aiokprod.observer import Observer


class Engine:
    """Turns records into Produce requests.

    Args:
        client: sends the requests.
        wakeup: the event on which the sender waits.
        wake: sets `wakeup`; called when the sender has to run.
        executor: compresses large batches; None if no topic has a codec.
        choose_partition: returns the next sticky partition of a topic.
        backoff: returns the seconds before the next attempt for a number of failed attempts (1, 2,
            ...).
        loop_lag: see `Sender`.
    """

    def __init__(
        self,
        config: ProducerConfig,
        *,
        loop: asyncio.AbstractEventLoop,
        client: BrokerClient,
        metadata: Metadata,
        state: ProducerState,
        settings: TopicSettingsTable,
        wakeup: WakeupEvent,
        wake: Callable[[], None],
        executor: Executor | None,
        choose_partition: Callable[[TopicSlot], int],
        backoff: Callable[[int], float],
        observer: Observer,
        loop_lag: Histogram | None = None,
    ) -> None:
        self._metadata = metadata
        self.memory = BufferMemory(config.buffer_memory, wake)
        self.flushes = FlushTracker()
        self.quota = BrokerMemoryQuota(config.buffer_memory, self._several_nodes)
        self.accumulator = RecordAccumulator(
            config,
            loop=loop,
            memory=self.memory,
            compressor=BatchCompressor(executor, loop, self._on_batch_compressed),
            flushes=self.flushes,
            quota=self.quota,
            choose_partition=choose_partition,
            maybe_add_partition=state.gate.maybe_add_partition,
            wakeup=wake,
            settings=settings,
        )
        self.sender = Sender(
            config,
            loop=loop,
            accumulator=self.accumulator,
            client=client,
            metadata=metadata,
            state=state,
            wakeup=wakeup,
            backoff=backoff,
            observer=observer,
            loop_lag=loop_lag,
        )

    def _several_nodes(self) -> bool:
        return len(self._metadata.snapshot.nodes) > 1

    def _on_batch_compressed(self, batch: ProducerBatch, error: BaseException | None) -> None:
        self.sender.on_batch_compressed(batch, error)
