"""The requests of a `ClusterClient`. Each function builds a request, sends it and reads its
response.

The client retries retriable coordinator errors. Other error codes are returned, because their
meaning depends on the caller.

Source: Java `Admin`; KIP-98 (transactions, read_committed), KIP-447 (require_stable), KIP-664
(DescribeTransactions, ListTransactions), KIP-890 (EndTxn v5).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from aiokprod._engine.identity import transaction_requests
from aiokprod._engine.identity.coordinators import CoordinatorKind, VersionedRequest
from aiokprod._engine.identity.transaction_states import may_be_carried_out
from aiokprod._wire.batch_reader import RecordBatch, read_batches
from aiokprod._wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from aiokprod._wire.messages.describe_transactions import DescribeTransactionsRequest
from aiokprod._wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from aiokprod._wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from aiokprod._wire.messages.list_transactions import ListTransactionsRequest
from aiokprod._wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from aiokprod._wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from aiokprod.errors import KafkaError

if TYPE_CHECKING:
    from aiokprod._client.cluster_client.cluster_client import ClusterClient

_METADATA_MAX: Final = 12
_PERMISSIONS_FROM: Final = 8
_AUTO_CREATION_FROM: Final = 4
_LIST_OFFSETS_MAX: Final = 6
_ISOLATION_FROM: Final = 2
_FETCH_MAX: Final = 12
"""Last version with topic names. Later versions need topic ids."""
_FETCH_WAIT_MS: Final = 500
_OFFSET_FETCH_MAX: Final = 9
"""Last version with topic names. Later versions need topic ids."""
_GROUPS_FROM: Final = 8
_STABLE_FROM: Final = 7
_LIST_SECONDS: Final = 5.0
"""Timeout of a ListTransactions request, in seconds."""


# -- topics -------------------------------------------------------------------------------------


async def describe_topic(
    client: ClusterClient, topic: str | None, deadline: float, *, allow_auto_creation: bool
) -> tuple[int, int]:
    """Send one Metadata request for a topic, or for no topic if None, to any broker.

    Returns:
        The error code, and the bits of the operations that the credentials permit (AclOperation;
        -2**31 if the broker does not report them).

    Raises:
        KafkaError: see `ClusterClient.ask`.
    """

    def build(version: int) -> MetadataRequest:
        more: dict[str, Any] = {}
        if version >= _PERMISSIONS_FROM:
            more["include_topic_authorized_operations"] = True
        if version >= _AUTO_CREATION_FROM:
            more["allow_auto_topic_creation"] = allow_auto_creation
        wanted = [] if topic is None else [MetadataRequestTopic(name=topic)]
        return MetadataRequest(topics=wanted, **more)

    request = VersionedRequest(MetadataRequest.api_key, build, _METADATA_MAX)
    response = await client.ask(None, request, deadline)
    if topic is None:
        return 0, -(2**31)
    (found,) = response.body.topics
    return found.error_code, found.topic_authorized_operations


class PartitionDescription(NamedTuple):
    """A partition in a Metadata response, with the node ids of the leader (-1 if there is none),
    the replicas and the in-sync replicas."""

    number: int
    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


class TopicDescription(NamedTuple):
    """A topic in a Metadata response.

    Attributes:
        operations: bits of the operations that the credentials permit (AclOperation; -2**31 if the
            broker does not report them).
    """

    name: str
    error_code: int
    operations: int
    partitions: list[PartitionDescription]


async def describe_topics(
    client: ClusterClient, topics: Collection[str], deadline: float
) -> list[TopicDescription]:
    """Send one Metadata request for topics to any broker. It does not create topics.

    Raises:
        KafkaError: see `ClusterClient.ask`.
    """

    def build(version: int) -> MetadataRequest:
        more: dict[str, Any] = {}
        if version >= _PERMISSIONS_FROM:
            more["include_topic_authorized_operations"] = True
        if version >= _AUTO_CREATION_FROM:
            more["allow_auto_topic_creation"] = False
        return MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in topics], **more)

    request = VersionedRequest(MetadataRequest.api_key, build, _METADATA_MAX)
    response = await client.ask(None, request, deadline)
    return [
        TopicDescription(
            found.name or "",
            found.error_code,
            found.topic_authorized_operations,
            [
                PartitionDescription(
                    p.partition_index, p.leader_id, tuple(p.replica_nodes), tuple(p.isr_nodes)
                )
                for p in sorted(found.partitions, key=lambda p: p.partition_index)
            ],
        )
        for found in response.body.topics
    ]


async def describe_configs(
    client: ClusterClient,
    node_id: int,
    resources: Iterable[tuple[int, str, Collection[str]]],
    deadline: float,
) -> dict[tuple[int, str], tuple[int, dict[str, str | None]]]:
    """Send one DescribeConfigs request for the settings of topics, or of the broker itself.

    Args:
        resources: (type, name, requested settings) of each resource. Type 2 is a topic, 4 a broker.

    Returns:
        For each (type, name): error code, and the values by setting (None if sensitive).

    Raises:
        KafkaError: see `ClusterClient.ask`.
    """
    message = DescribeConfigsRequest(
        resources=[
            DescribeConfigsResource(
                resource_type=kind, resource_name=name, configuration_keys=list(keys)
            )
            for kind, name, keys in resources
        ]
    )
    if not message.resources:
        return {}
    response = await client.ask(node_id, message, deadline)
    return {
        (one.resource_type, one.resource_name): (
            one.error_code,
            {config.name: config.value for config in one.configs},
        )
        for one in response.body.results
    }


# -- partitions ---------------------------------------------------------------------------------


async def list_offsets(
    client: ClusterClient,
    leader: int,
    partitions: Iterable[tuple[str, int]],
    deadline: float,
    *,
    timestamp: int,
    committed: bool,
) -> dict[tuple[str, int], tuple[int, int]]:
    """Send one ListOffsets request to the leader of these (topic, partition) pairs.

    Args:
        timestamp: Unix ms; -1 for the end of the log, -2 for its start.
        committed: True if the last stable offset counts as the end of the log.

    Returns:
        (error code, offset) by (topic, partition), for the partitions in the response.

    Raises:
        KafkaError: see `ClusterClient.ask`.
    """
    wanted: dict[str, list[ListOffsetsPartition]] = {}
    for topic, number in partitions:
        entry = ListOffsetsPartition(partition_index=number, timestamp=timestamp)
        wanted.setdefault(topic, []).append(entry)
    topics = [ListOffsetsTopic(name=name, partitions=found) for name, found in wanted.items()]

    def build(version: int) -> ListOffsetsRequest:
        if version < _ISOLATION_FROM:
            return ListOffsetsRequest(replica_id=-1, topics=topics)
        return ListOffsetsRequest(replica_id=-1, isolation_level=int(committed), topics=topics)

    request = VersionedRequest(ListOffsetsRequest.api_key, build, _LIST_OFFSETS_MAX)
    response = await client.ask(leader, request, deadline)
    return {
        (topic.name, one.partition_index): (one.error_code, int(one.offset))
        for topic in response.body.topics
        for one in topic.partitions
    }


class FetchedPartition(NamedTuple):
    """The part of a Fetch response about one partition.

    Attributes:
        aborted: (first offset, producer id) of the aborted transactions in the range, sorted.
        batches: an iterator that decodes batches and raises `DecodeError` at a damaged batch. An
            incomplete batch at the end is left out.
    """

    error_code: int
    aborted: list[tuple[int, int]]
    batches: Iterator[RecordBatch]


async def fetch(
    client: ClusterClient,
    leader: int,
    topic: str,
    partition: int,
    deadline: float,
    *,
    offset: int,
    max_bytes: int,
    committed: bool,
) -> FetchedPartition | None:
    """Send one Fetch request to a partition's leader, without a fetch session.

    Args:
        max_bytes: maximum size of the batches; a first batch that is larger is returned whole.
        committed: return only records up to the last stable offset.

    Returns:
        The data of the partition, or None if the response does not contain it. An error code of the
        whole response is returned as that of the partition.

    Raises:
        KafkaError: see `ClusterClient.ask`.
    """
    wanted = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=max_bytes)
    message = FetchRequest(
        max_wait_ms=_FETCH_WAIT_MS,
        min_bytes=1,
        max_bytes=max_bytes,
        isolation_level=int(committed),
        topics=[FetchTopic(topic=topic, partitions=[wanted])],
    )
    request = VersionedRequest(message.api_key, lambda version: message, _FETCH_MAX)
    response = await client.ask(leader, request, deadline)
    if response.body.error_code:
        return FetchedPartition(response.body.error_code, [], iter(()))
    data = _only_partition(response.body.responses)
    if data is None:
        return None
    aborted = sorted((one.first_offset, one.producer_id) for one in data.aborted_transactions or ())
    batches = read_batches(data.records or b"", partial_tail=True)
    return FetchedPartition(data.error_code, aborted, batches)


def _only_partition(topics: Iterable[Any]) -> Any:
    """Return the entry of the only requested partition in a response, or None if it is missing."""
    return next((entry for topic in topics for entry in topic.partitions), None)


# -- groups -------------------------------------------------------------------------------------


class GroupOffset(NamedTuple):
    """A committed offset of a consumer group. `offset` is -1 if there is none."""

    topic: str
    partition: int
    offset: int
    metadata: str | None


async def group_offsets(
    client: ClusterClient,
    group: str,
    deadline: float,
    *,
    stable: bool,
    on_code: Callable[[int], None] = lambda code: None,
) -> tuple[int, list[GroupOffset]]:
    """Request all committed offsets of a consumer group.

    Args:
        stable: wait until transactions that are ending have written their offsets (require_stable).
        on_code: called with the error code of every response, including retriable codes. An
            exception raised by this function ends the call.

    Returns:
        The first error code of the group or of a partition, and the offsets.

    Raises:
        KafkaError: see `ClusterClient.coordinate`.
    """

    def build(version: int) -> OffsetFetchRequest:
        more: dict[str, Any] = {"require_stable": stable} if version >= _STABLE_FROM else {}
        if version >= _GROUPS_FROM:
            wanted = OffsetFetchRequestGroup(group_id=group, topics=None)
            return OffsetFetchRequest(groups=[wanted], **more)
        return OffsetFetchRequest(group_id=group, topics=None, **more)

    def code_of(body: Any) -> int:
        code = _offsets_code(_group_of(body))
        on_code(code)
        return code

    request = VersionedRequest(OffsetFetchRequest.api_key, build, _OFFSET_FETCH_MAX)
    body = await client.coordinate(CoordinatorKind.GROUP, group, request, deadline, code_of)
    found = _group_of(body)
    offsets = [
        GroupOffset(topic.name, one.partition_index, one.committed_offset, one.metadata)
        for topic in found.topics
        for one in topic.partitions
    ]
    return _offsets_code(found), offsets


def _group_of(body: Any) -> Any:
    """Return the part of the response about the only group; before v8 this is the body itself."""
    return body.groups[0] if body.groups else body


def _offsets_code(group: Any) -> int:
    if group.error_code:
        return int(group.error_code)
    for topic in group.topics:
        for partition in topic.partitions:
            if partition.error_code:
                return int(partition.error_code)
    return 0


# -- transactions -------------------------------------------------------------------------------


class EndTransaction:
    """An EndTxn request for a transaction that `Producer.prepare_transaction` left open.

    Args:
        second_protocol: True if the transaction uses transaction protocol V2 (KIP-890).
    """

    def __init__(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        *,
        commit: bool,
        second_protocol: bool,
    ) -> None:
        self._transactional_id = transactional_id
        self._request = transaction_requests.end(
            transactional_id, producer_id, epoch, commit=commit, tv2=second_protocol
        )
        self._unanswered = 0
        self._maybe_ended = False

    @property
    def in_doubt(self) -> bool:
        """True if an attempt may have ended the transaction: it has no response, or an error code
        that does not rule this out. The response to a later attempt says nothing about an earlier
        attempt."""
        return self._maybe_ended or self._unanswered > 0

    async def send(self, client: ClusterClient, deadline: float) -> int:
        """Send the request, and retry after retriable errors until `deadline`. Return the final
        error code.

        Raises:
            KafkaError: see `ClusterClient.coordinate`.
        """
        request = VersionedRequest(self._request.api_key, self._build, self._request.max_version)
        body = await client.coordinate(
            CoordinatorKind.TRANSACTION, self._transactional_id, request, deadline, self._code_of
        )
        return int(body.error_code)

    def _build(self, version: int) -> Any:
        self._unanswered += 1
        return self._request(version)

    def _code_of(self, body: Any) -> int:
        self._unanswered -= 1
        self._maybe_ended = may_be_carried_out(body.error_code, earlier=self._maybe_ended)
        return int(body.error_code)


async def fence_producer(
    client: ClusterClient, transactional_id: str, timeout_ms: int, deadline: float
) -> int:
    """Send InitProducerId, which fences the producers with this transactional id and aborts the
    open transaction of the id.

    Args:
        timeout_ms: transaction timeout, which brokers require.

    Returns:
        The error code.

    Raises:
        KafkaError: see `ClusterClient.coordinate`.
    """
    request = transaction_requests.init(transactional_id, timeout_ms, -1, -1)
    body = await client.coordinate(CoordinatorKind.TRANSACTION, transactional_id, request, deadline)
    return int(body.error_code)


class TransactionDescription(NamedTuple):
    """The state of a transactional id. After an error only `error_code` is defined."""

    error_code: int
    state: str
    producer_id: int
    epoch: int


async def describe_transactions(
    client: ClusterClient, transactional_ids: Collection[str], deadline: float
) -> dict[str, TransactionDescription]:
    """Describe transactional ids. Sends one DescribeTransactions request to each coordinator; all
    requests are concurrent.

    Raises:
        UnsupportedVersion: the broker is older than Kafka 3.0.
        KafkaError: see `ClusterClient.coordinate_all`.
    """

    def answers(body: Any) -> dict[str, tuple[int, TransactionDescription]]:
        return {
            one.transactional_id: (
                one.error_code,
                TransactionDescription(
                    one.error_code, one.transaction_state, one.producer_id, one.producer_epoch
                ),
            )
            for one in body.transaction_states
        }

    return await client.coordinate_all(
        CoordinatorKind.TRANSACTION,
        transactional_ids,
        lambda ids: DescribeTransactionsRequest(transactional_ids=ids),
        answers,
        deadline,
    )


async def ongoing_transactions(
    client: ClusterClient,
    deadline: float,
    on_failure: Callable[[KafkaError], None] | None = None,
) -> set[str]:
    """Return the transactional ids with an ongoing transaction that the credentials may describe.
    Sends one ListTransactions request to each broker; all requests are concurrent.

    Args:
        on_failure: called with the error of each failed request. If None, the first of these errors
            is raised.

    Raises:
        KafkaError: see `ClusterClient.nodes` and `ClusterClient.ask`.
    """
    request = ListTransactionsRequest(state_filters=["Ongoing"])
    nodes = await client.nodes(deadline)
    limit = min(deadline, client.loop.time() + _LIST_SECONDS)
    responses = await asyncio.gather(
        *(client.ask(node, request, limit) for node in nodes), return_exceptions=True
    )
    found: set[str] = set()
    for response in responses:
        if not isinstance(response, BaseException):
            found |= {one.transactional_id for one in response.body.transaction_states}
        elif isinstance(response, KafkaError) and on_failure is not None:
            on_failure(response)
        else:
            raise response
    return found
