"""Ends the transactions that earlier runs of a batch job left open.

The transactional ids of a batch job contain a name that is created for each run, so InitProducerId
of a later run does not fence them. If a driver dies, its transactions would block `read_committed`
consumers until they time out.
"""

from __future__ import annotations

import asyncio
import logging
import re
from typing import TYPE_CHECKING, Final

from aiokprod._client.cluster_client import ClusterClient, fence_producer, ongoing_transactions
from aiokprod._log_fields import log_fields
from aiokprod.errors import Code, KafkaError, error_code
from aiokprod.spark.worker_loop import loop_thread

if TYPE_CHECKING:
    from aiokprod.spark.options import SinkOptions

logger = logging.getLogger("aiokprod.spark")

JOB_DIGITS: Final = 12
"""Number of hexadecimal digits in the name of a run."""
FENCE_TIMEOUT_MS: Final = 60_000
"""Transaction timeout of an InitProducerId that is sent only to fence a producer."""
_SECONDS: Final = 10.0
"""Time limit for ending all transactions, s."""
_AT_ONCE: Final = 8
"""Maximum number of concurrent InitProducerId requests."""


def end_orphans(options: SinkOptions) -> None:
    """End the transactions that earlier runs with the same transactionalIdPrefix left open. Takes
    up to ten seconds.

    Transactions of a run that is still active are ended too: a prefix belongs to one job and, as
    with any transactional id, the latest run is valid. A failure is only logged, because the
    transactions time out in any case.
    """
    thread = loop_thread(options.loop)
    try:
        ended = thread.run(_end(options), _SECONDS + 5.0)
    except (KafkaError, TimeoutError) as error:
        logger.warning(
            "aiokprod: transactions that an earlier run of this job may have left open are left to "
            "their timeout: %s", error,
            extra=log_fields("spark_orphans_left", error=error),
        )  # fmt: skip
        return
    if ended:
        logger.warning(
            "aiokprod: ended %s transactions that an earlier run with this transactionalIdPrefix "
            "had left open, %s first", len(ended), ended[0],
            extra=log_fields("spark_orphans_ended", count=len(ended)),
        )  # fmt: skip


async def _end(options: SinkOptions) -> list[str]:
    """End the transactions, and return their transactional ids in alphabetical order."""
    client = ClusterClient(options.producer_config(), patience=0.0)
    try:
        deadline = client.loop.time() + _SECONDS
        failures: list[KafkaError] = []
        found = await ongoing_transactions(client, deadline, failures.append)
        prefix = options.transactional_id_prefix
        assert prefix is not None, "checked with the options"
        orphans = sorted(one for one in found if _is_of_job(prefix, one))
        turns = asyncio.Semaphore(_AT_ONCE)

        async def fence(orphan: str) -> None:
            async with turns:
                await fence_transaction(client, orphan, deadline)

        await asyncio.gather(*map(fence, orphans))
        if failures:
            logger.warning(
                "aiokprod: transactions that an earlier run of this job may have left open were "
                "not searched for on every broker: %s", failures[0],
                extra=log_fields("spark_orphans_left", error=failures[0]),
            )  # fmt: skip
        return orphans
    finally:
        await client.close(1.0)


def _is_of_job(prefix: str, transactional_id: str) -> bool:
    """Return True for the id of a batch job. An id of a stream contains the query id instead of
    the name of a run."""
    pattern = rf"{re.escape(prefix)}\.[0-9a-f]{{{JOB_DIGITS}}}\.[0-9]+"
    return re.fullmatch(pattern, transactional_id) is not None


async def fence_transaction(client: ClusterClient, transactional_id: str, deadline: float) -> None:
    """Abort the open transaction of this id, and fence its producer.

    Raises:
        KafkaError: the coordinator rejected the request, or sent no definite response.
    """
    code = await fence_producer(client, transactional_id, FENCE_TIMEOUT_MS, deadline)
    if code != Code.NONE:
        found = error_code(code)
        raise KafkaError(f"transactional id {transactional_id}: {found.text}", code=found)
