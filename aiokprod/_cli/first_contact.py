"""The first contact with the brokers: it fails early if no bootstrap server can be reached."""

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
"""Seconds for which bootstrap servers that refuse are tried again, unless max_block_ms is given: a
broker may be starting."""

RECENT_S: Final = 3.0
"""Seconds at the end of these in which every server has to fail once more: one that has not may
have started meanwhile, and be slow."""


async def connected(
    options: Namespace, config: ProducerConfig, environment: Environment | None = None
) -> Producer[bytes, bytes]:
    """A producer that is started and has the metadata of the topic.

    Args:
        environment: for tests.

    Raises:
        DialError: there was no metadata, and each bootstrap server has failed.
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
    """Returns once there is metadata.

    Raises:
        DialError: there is none after `LIMIT_S`, and each bootstrap server has failed.
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
