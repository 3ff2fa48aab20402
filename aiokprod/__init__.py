"""aiokprod: an asyncio-native Apache Kafka producer.

    async with Producer(bootstrap_servers="localhost:9092") as producer:
        metadata = await producer.send("topic", b"value", key=b"key")

The names below are the public API.
"""

from aiokprod._client.bulk_result import BulkProgress, BulkResult, OffsetRange
from aiokprod._client.status import Health
from aiokprod._client.transactions import Transaction
from aiokprod._config.settings import ProducerSettings
from aiokprod._consumer_groups import GroupMetadata
from aiokprod._core.batch import Delivery, RecordMetadata
from aiokprod._security.secret import Credentials, Secret
from aiokprod._version import COMPILED, __version__
from aiokprod.blocking import Blocking
from aiokprod.cluster import ClusterSnapshot, Node, PartitionInfo, TopicInfo
from aiokprod.config import ProducerConfig
from aiokprod.environment import Environment
from aiokprod.errors import (
    AbortableTransactionError,
    AuthenticationError,
    AuthorizationError,
    BrokerError,
    BufferFull,
    BufferTimeout,
    ConfigError,
    CorrelationMismatch,
    DecodeError,
    DeliveryTimeout,
    DialError,
    Disconnected,
    ErrorCode,
    FatalTransactionError,
    ForkedProcess,
    FrameTooLarge,
    InvalidTopic,
    KafkaError,
    KafkaTimeout,
    MetadataMissing,
    MetadataTimeout,
    NetworkError,
    NotReady,
    Outcome,
    ProducerClosed,
    ProducerFailed,
    ProducerFenced,
    ProtocolError,
    RecordRejected,
    RecordTooLarge,
    RequestTimedOut,
    SchemaMissing,
    SerializationError,
    TransactionError,
    UnknownTopic,
    UnsupportedVersion,
    WouldBlock,
    WrongLoop,
)
from aiokprod.findings import Finding, Severity
from aiokprod.interceptors import ProducerInterceptor
from aiokprod.observer import Metrics, Observer
from aiokprod.partitioners import (
    ConsistentRandomPartitioner,
    DefaultPartitioner,
    Partitioner,
    RoundRobinPartitioner,
)
from aiokprod.plugins import RecordPlugin
from aiokprod.producer import Producer
from aiokprod.records import (
    DrainReport,
    Header,
    ProducerRecord,
    TopicDrain,
    TopicPartition,
    UndeliveredBatch,
)
from aiokprod.serializers import (
    BytesSerializer,
    IntSerializer,
    JsonSerializer,
    Serializer,
    StringSerializer,
)
from aiokprod.topic_profiles import TopicProfile

__all__ = [
    "COMPILED",
    "AbortableTransactionError",
    "AuthenticationError",
    "AuthorizationError",
    "Blocking",
    "BrokerError",
    "BufferFull",
    "BufferTimeout",
    "BulkProgress",
    "BulkResult",
    "BytesSerializer",
    "ClusterSnapshot",
    "ConfigError",
    "ConsistentRandomPartitioner",
    "CorrelationMismatch",
    "Credentials",
    "DecodeError",
    "DefaultPartitioner",
    "Delivery",
    "DeliveryTimeout",
    "DialError",
    "Disconnected",
    "DrainReport",
    "Environment",
    "ErrorCode",
    "FatalTransactionError",
    "Finding",
    "ForkedProcess",
    "FrameTooLarge",
    "GroupMetadata",
    "Header",
    "Health",
    "IntSerializer",
    "InvalidTopic",
    "JsonSerializer",
    "KafkaError",
    "KafkaTimeout",
    "MetadataMissing",
    "MetadataTimeout",
    "Metrics",
    "NetworkError",
    "Node",
    "NotReady",
    "Observer",
    "OffsetRange",
    "Outcome",
    "PartitionInfo",
    "Partitioner",
    "Producer",
    "ProducerClosed",
    "ProducerConfig",
    "ProducerFailed",
    "ProducerFenced",
    "ProducerInterceptor",
    "ProducerRecord",
    "ProducerSettings",
    "ProtocolError",
    "RecordMetadata",
    "RecordPlugin",
    "RecordRejected",
    "RecordTooLarge",
    "RequestTimedOut",
    "RoundRobinPartitioner",
    "SchemaMissing",
    "Secret",
    "SerializationError",
    "Serializer",
    "Severity",
    "StringSerializer",
    "TopicDrain",
    "TopicInfo",
    "TopicPartition",
    "TopicProfile",
    "Transaction",
    "TransactionError",
    "UndeliveredBatch",
    "UnknownTopic",
    "UnsupportedVersion",
    "WouldBlock",
    "WrongLoop",
    "__version__",
]
