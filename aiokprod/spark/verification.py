"""Checks, before the first commit, that all transactions of the tasks can still be committed.

A transaction that timed out or was fenced cannot be committed any more. Without this check, only
its EndTxn would fail, possibly after other transactions were committed. The job would then be
committed in part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aiokprod._client.cluster_client import describe_transactions
from aiokprod.errors import Code, error_code

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiokprod._client.cluster_client import ClusterClient, TransactionDescription
    from aiokprod.spark.commit_messages import Prepared

_ONGOING: Final = "Ongoing"
"""The only state in which a transaction can be committed."""

TIMED_OUT: Final = (
    "it was open for longer than kafka.transaction.timeout.ms, or a later attempt, or another "
    "query or job with the same transactionalIdPrefix, took over"
)


def too_short(seconds: float, timeout_ms: int) -> str | None:
    """Return an advice if a transaction was open for longer than its timeout, otherwise None."""
    if seconds * 1000 < timeout_ms:
        return None
    return (
        f"The task took {seconds:.1f} s, and option kafka.transaction.timeout.ms is {timeout_ms}, "
        "so the coordinator aborted its transaction. Every attempt that takes as long fails in the "
        "same way: raise the option, or make the tasks shorter"
    )


async def lost_transactions(
    client: ClusterClient, tasks: Sequence[Prepared], deadline: float
) -> list[tuple[Prepared, str]]:
    """Return (task, reason) for each task whose transaction is no longer open with its producer id
    and epoch.

    Sends one DescribeTransactions request (KIP-664) to each coordinator, concurrently.

    Raises:
        UnsupportedVersion: brokers before 3.0 have no DescribeTransactions.
        KafkaError: the brokers sent no definite response.
    """
    states = await describe_transactions(
        client, [task.transactional_id for task in tasks], deadline
    )
    found = ((task, _reason(task, states[task.transactional_id])) for task in tasks)
    return [(task, reason) for task, reason in found if reason is not None]


def _reason(task: Prepared, state: TransactionDescription) -> str | None:
    """Return why this transaction cannot be committed, or None if it can be."""
    if state.error_code != Code.NONE:
        return error_code(state.error_code).text
    owner = state.producer_id, state.epoch
    if owner == (task.producer_id, task.epoch) and state.state == _ONGOING:
        return None
    return (
        f"{state.state} by producer {owner[0]} epoch {owner[1]}, it was prepared by "
        f"producer {task.producer_id} epoch {task.epoch}: {TIMED_OUT}"
    )
