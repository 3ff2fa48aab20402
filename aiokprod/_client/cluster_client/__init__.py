"""A client for metadata, coordinators, ListOffsets and Fetch, without the sending of records.

`Producer.check` uses it, and so does the Spark sink, on the driver and in its tasks. It is not
public. Apart from this package, `_log_fields` and the decorator in `_redaction`, `aiokprod.spark`
imports only public names.
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
