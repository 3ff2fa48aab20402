"""Starts a producer, and fails early if no bootstrap server can be reached."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from typing import Final

from aiokprod._cli.settings import is_given
from aiokprod._compat.bootstrap_watch import BootstrapWatch
from aiokprod.config import ProducerConfig
from aiokprod.environment import Environment
from aiokprod.errors import DialError, KafkaError
from aiokprod.producer import Producer

LIMIT_S: Final = 10.0
"""Seconds for which unreachable bootstrap servers are tried again, because a broker may be starting
up. Does not apply if max_block_ms is given."""

RECENT_S: Final = 3.0
"""Length in seconds of the last part of `LIMIT_S`, in which every server must fail again. A server
that does not fail in this time may have started in the meantime and be slow."""


async def connected(
    options: Namespace, config: ProducerConfig, environment: Environment | None = None
) -> Producer[bytes, bytes]:
    """Return a producer that is started and has the metadata of the topic.

    Args:
        environment: network and clocks, for tests.

    Raises:
        DialError: there was no metadata, and every bootstrap server failed.
        KafkaError: see `Producer.start` and `Producer.partitions_for`.
    """
    watch = BootstrapWatch()
    watch.servers = len(set(config.bootstrap_addresses()))
    producer = Producer[bytes, bytes](config, plugins=[watch], environment=environment)

    async def start() -> None:
        await producer.start()
        await producer.partitions_for(options.topic)

    starting = asyncio.ensure_future(start())
    tasks: set[asyncio.Future[None]] = {starting}
    if not is_given(options, "max_block_ms"):
        tasks.add(asyncio.ensure_future(_give_up(watch)))
    try:
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if starting not in done:
                for giving_up in done:
                    giving_up.result()
            await starting
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    except BaseException:
        await producer.close(0)
        raise
    return producer


async def _give_up(watch: BootstrapWatch) -> None:
    """Wait until there is metadata.

    Raises:
        DialError: there is no metadata after `LIMIT_S`, and every bootstrap server has failed.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + LIMIT_S
    error: KafkaError | None = await watch.wait(None)
    if error is not None:
        if loop.time() < end - RECENT_S:
            await asyncio.sleep(end - RECENT_S - loop.time())
            watch.forget_failures()
        await asyncio.sleep(end - loop.time())
        error = await watch.wait(None)
    if error is not None:
        waited = loop.time() - end + LIMIT_S
        raise DialError(
            f"no bootstrap server could be reached within {waited:.3g} s: {error.message}"
        ) from error
