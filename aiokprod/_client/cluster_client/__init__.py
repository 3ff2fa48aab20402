"""A client for metadata, coordinators, ListOffsets and Fetch: a `Runtime` without records.

Used by `Producer.check`, and by the Spark sink on the driver and in its tasks. Not public. Besides
this package, `_log_fields` and the decorator in `_redaction`, `aiokprod.spark` imports public names
only.
"""

from aiokprod._client.cluster_client.cluster_client import ClusterClient
from aiokprod._client.cluster_client.requests import (
    EndTransaction,
    FetchedPartition,
    GroupOffset,
    PartitionDescription,
    TopicDescription,
    TransactionDescription,
    describe_configs,
    describe_topic,
    describe_topics,
    describe_transactions,
    fence_producer,
    fetch,
    group_offsets,
    list_offsets,
    ongoing_transactions,
)
from aiokprod._wire.batch_reader import RecordBatch

__all__ = [
    "ClusterClient",
    "EndTransaction",
    "FetchedPartition",
    "GroupOffset",
    "PartitionDescription",
    "RecordBatch",
    "TopicDescription",
    "TransactionDescription",
    "describe_configs",
    "describe_topic",
    "describe_topics",
    "describe_transactions",
    "fence_producer",
    "fetch",
    "group_offsets",
    "list_offsets",
    "ongoing_transactions",
]
