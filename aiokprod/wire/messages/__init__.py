"""Requests and responses, one module per API, and the two registries by API key."""

from __future__ import annotations

from typing import Final

from aiokprod.wire.message import Message
from aiokprod.wire.messages.add_offsets_to_txn import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
)
from aiokprod.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
)
from aiokprod.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from aiokprod.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
)
from aiokprod.wire.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from aiokprod.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from aiokprod.wire.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from aiokprod.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResponse
from aiokprod.wire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
)
from aiokprod.wire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from aiokprod.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from aiokprod.wire.messages.fetch import FetchRequest, FetchResponse
from aiokprod.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from aiokprod.wire.messages.get_telemetry_subscriptions import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
)
from aiokprod.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from aiokprod.wire.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from aiokprod.wire.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from aiokprod.wire.messages.metadata import MetadataRequest, MetadataResponse
from aiokprod.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from aiokprod.wire.messages.produce import ProduceRequest, ProduceResponse
from aiokprod.wire.messages.push_telemetry import PushTelemetryRequest, PushTelemetryResponse
from aiokprod.wire.messages.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from aiokprod.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from aiokprod.wire.messages.txn_offset_commit import TxnOffsetCommitRequest, TxnOffsetCommitResponse

REQUESTS: Final[dict[int, type[Message]]] = {
    message.api_key: message
    for message in (
        ProduceRequest,
        FetchRequest,
        ListOffsetsRequest,
        MetadataRequest,
        OffsetFetchRequest,
        FindCoordinatorRequest,
        SaslHandshakeRequest,
        ApiVersionsRequest,
        CreateTopicsRequest,
        DeleteTopicsRequest,
        InitProducerIdRequest,
        AddPartitionsToTxnRequest,
        AddOffsetsToTxnRequest,
        EndTxnRequest,
        TxnOffsetCommitRequest,
        DescribeConfigsRequest,
        SaslAuthenticateRequest,
        CreatePartitionsRequest,
        DescribeClusterRequest,
        DescribeProducersRequest,
        DescribeTransactionsRequest,
        ListTransactionsRequest,
        GetTelemetrySubscriptionsRequest,
        PushTelemetryRequest,
    )
}
"""Request class by API key."""

RESPONSES: Final[dict[int, type[Message]]] = {
    message.api_key: message
    for message in (
        ProduceResponse,
        FetchResponse,
        ListOffsetsResponse,
        MetadataResponse,
        OffsetFetchResponse,
        FindCoordinatorResponse,
        SaslHandshakeResponse,
        ApiVersionsResponse,
        CreateTopicsResponse,
        DeleteTopicsResponse,
        InitProducerIdResponse,
        AddPartitionsToTxnResponse,
        AddOffsetsToTxnResponse,
        EndTxnResponse,
        TxnOffsetCommitResponse,
        DescribeConfigsResponse,
        SaslAuthenticateResponse,
        CreatePartitionsResponse,
        DescribeClusterResponse,
        DescribeProducersResponse,
        DescribeTransactionsResponse,
        ListTransactionsResponse,
        GetTelemetrySubscriptionsResponse,
        PushTelemetryResponse,
    )
}
"""Response class by API key."""
