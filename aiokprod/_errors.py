"""The table of Kafka's error codes: the only place that knows what a code number means.

Source: the error table of the Kafka protocol guide and Java `o.a.k.common.protocol.Errors` of the
4.x line. `retriable` and the refresh flags follow the Java exception hierarchy
(`RetriableException`, `InvalidMetadataException`, `RefreshRetriableException` for coordinators)
but for BROKER_NOT_AVAILABLE: it only says that the broker is starting or stopping.
`outcome` is our own reading: it answers whether records of a Produce request that got this code can
nevertheless be in the log.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final


class Outcome(enum.Enum):
    """Whether a record that failed can be in the log."""

    NOT_SENT = "not_sent"
    """No byte of it ever reached a broker; sending it again cannot duplicate it."""
    REJECTED = "rejected"
    """A broker refused it and did not keep it; sending it again cannot duplicate it."""
    UNKNOWN = "unknown"
    """It may or may not be in the log; sending it again may duplicate it."""

    @property
    def definite(self) -> bool:
        """True if the record is certainly not in the log."""
        return self is not Outcome.UNKNOWN


class Code(enum.IntEnum):
    """Every error code of Kafka 4.x by its protocol name."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    INVALID_FETCH_SIZE = 4
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    BROKER_NOT_AVAILABLE = 8
    REPLICA_NOT_AVAILABLE = 9
    MESSAGE_TOO_LARGE = 10
    STALE_CONTROLLER_EPOCH = 11
    OFFSET_METADATA_TOO_LARGE = 12
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    LOG_DIR_NOT_FOUND = 57
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    REASSIGNMENT_IN_PROGRESS = 60
    DELEGATION_TOKEN_AUTH_DISABLED = 61
    DELEGATION_TOKEN_NOT_FOUND = 62
    DELEGATION_TOKEN_OWNER_MISMATCH = 63
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65
    DELEGATION_TOKEN_EXPIRED = 66
    INVALID_PRINCIPAL_TYPE = 67
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    LISTENER_NOT_FOUND = 72
    TOPIC_DELETION_DISABLED = 73
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    STALE_BROKER_EPOCH = 77
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    RESOURCE_NOT_FOUND = 91
    DUPLICATE_RESOURCE = 92
    UNACCEPTABLE_CREDENTIAL = 93
    INCONSISTENT_VOTER_SET = 94
    INVALID_UPDATE_VERSION = 95
    FEATURE_UPDATE_FAILED = 96
    PRINCIPAL_DESERIALIZATION_FAILURE = 97
    SNAPSHOT_NOT_FOUND = 98
    POSITION_OUT_OF_RANGE = 99
    UNKNOWN_TOPIC_ID = 100
    DUPLICATE_BROKER_REGISTRATION = 101
    BROKER_ID_NOT_REGISTERED = 102
    INCONSISTENT_TOPIC_ID = 103
    INCONSISTENT_CLUSTER_ID = 104
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FETCH_SESSION_TOPIC_ID_ERROR = 106
    INELIGIBLE_REPLICA = 107
    NEW_LEADER_ELECTED = 108
    OFFSET_MOVED_TO_TIERED_STORAGE = 109
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    MISMATCHED_ENDPOINT_TYPE = 114
    UNSUPPORTED_ENDPOINT_TYPE = 115
    UNKNOWN_CONTROLLER_ID = 116
    UNKNOWN_SUBSCRIPTION_ID = 117
    TELEMETRY_TOO_LARGE = 118
    INVALID_REGISTRATION = 119
    TRANSACTION_ABORTABLE = 120
    INVALID_RECORD_STATE = 121
    SHARE_SESSION_NOT_FOUND = 122
    INVALID_SHARE_SESSION_EPOCH = 123
    FENCED_STATE_EPOCH = 124
    INVALID_VOTER_KEY = 125
    DUPLICATE_VOTER = 126
    VOTER_NOT_FOUND = 127
    INVALID_REGULAR_EXPRESSION = 128
    REBOOTSTRAP_REQUIRED = 129
    STREAMS_INVALID_TOPOLOGY = 130
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131
    STREAMS_TOPOLOGY_FENCED = 132
    SHARE_SESSION_LIMIT_REACHED = 133


@dataclass(frozen=True, slots=True)
class ErrorCode:
    """One row of the error table.

    Attributes:
        number: the int16 on the wire.
        name: Kafka's name of the code.
        retriable: the same request may succeed later.
        refresh_metadata: the cause may be stale metadata, so it must be fetched again.
        refresh_coordinator: the coordinator must be looked up again.
        outcome: what the code says about the records of a Produce request.
        text: what it means, for messages.
    """

    number: int
    name: str
    retriable: bool
    refresh_metadata: bool
    refresh_coordinator: bool
    outcome: Outcome
    text: str


_RETRIABLE: Final = frozenset(
    {2, 3, 5, 6, 7, 8, 9, 13, 14, 15, 16, 19, 20, 41, 51, 56, 70, 71, 72, 74, 75, 78, 80, 83, 84}
    | {88, 89, 100, 103, 106, 122, 123, 133}
)
_REFRESH_METADATA: Final = frozenset({3, 5, 6, 9, 13, 56, 72, 74, 80, 83, 84, 100, 103})
_REFRESH_COORDINATOR: Final = frozenset({15, 16})

# Codes after which the records of a Produce request are certainly not in the log: every broker
# version that answers them to Produce checks them before it appends. Everything else is UNKNOWN, as
# a wrong "definite" would duplicate records. In particular `DelayedProduce.tryComplete` answers
# after the local append, while acks=all waits for the replicas: NOT_LEADER_OR_FOLLOWER (6),
# REQUEST_TIMED_OUT (7), NOT_ENOUGH_REPLICAS_AFTER_APPEND (20), KAFKA_STORAGE_ERROR (56; log
# directory offline) and UNKNOWN_TOPIC_OR_PARTITION (3; replica removed in Kafka 2.3 and older,
# topic gone from the metadata cache since). KAFKA_STORAGE_ERROR also follows a failed flush in
# `UnifiedLog.append`, behind the append. Codes that no broker answers to Produce (5, 8, 9, 72, 74,
# those of coordinators and of groups) prove nothing either.
_REJECTED: Final = frozenset(
    {
        2,  # CRC and layout: UnifiedLog.analyzeAndValidateRecords, LogValidator
        10,  # batch size: UnifiedLog.analyzeAndValidateRecords, again after recompression
        17,  # internal topic: ReplicaManager.appendToLocalLog, before the partition is looked up
        18,  # larger than a segment: UnifiedLog.append, before the segment is rolled
        19,  # Partition.appendRecordsToLeader (size of the ISR), or transaction verification
        21,  # acks out of range: first check of ReplicaManager.appendRecords
        29,  # KafkaApis.handleProduceRequest: ACL of the topic
        31,  # KafkaApis.handleProduceRequest: ACL for idempotence
        32,  # LogValidator: timestamp
        35,  # version of the request: KafkaApis, before the handler
        42,  # the request as a whole: ProduceRequest, KafkaApis
        43,  # message format or codec: UnifiedLog.append, LogValidator
        44,  # never by Kafka; gateways answer it instead of passing the request on
        45,  # ProducerAppendInfo.checkSequence, part of analyzeAndValidateProducerState
        47,  # ProducerAppendInfo.checkProducerEpoch, likewise; or transaction verification
        48,  # transaction verification, or UnifiedLog.analyzeAndValidateProducerState
        49,  # transaction verification (AddPartitionsToTxn before the append)
        51,  # transaction verification
        53,  # KafkaApis.handleProduceRequest: ACL of the transactional id
        55,  # transaction verification: another partition of it failed
        59,  # ProducerAppendInfo.checkSequence of Kafka 2.4 and older
        76,  # LogValidator: codec
        87,  # LogValidator, ProduceRequest.validateRecords
        90,  # ProducerAppendInfo.checkProducerEpoch until Kafka 2.6, or transaction verification
        100,  # KafkaApis.handleProduceRequest: no topic with this id
        103,  # ReplicaManager.appendToLocalLog: the partition has another topic id
        120,  # transaction verification
    }
)

_TEXTS: Final[dict[int, str]] = {
    -1: "the broker met an error it has no code for; its log has the cause",
    0: "no error",
    1: "the offset is outside the range the broker keeps",
    2: "the broker found a damaged batch: CRC, size or layout did not match",
    3: "the broker does not host this topic or partition",
    4: "the fetch size is invalid",
    5: "the partition has no leader at the moment",
    6: "the broker is not the leader (or a replica) of the partition",
    7: "the broker did not finish the request in time",
    8: "the broker is not available",
    9: "the replica is not available",
    10: "the batch is larger than the topic's max.message.bytes",
    11: "the controller moved to another broker",
    12: "the metadata of the offset commit is too large",
    13: "the connection broke before the answer arrived",
    14: "the coordinator is still loading its state",
    15: "the coordinator is not available",
    16: "the broker is not the coordinator",
    17: "the topic name is not valid",
    18: "the batch is larger than the broker's log segment",
    19: "fewer replicas are in sync than min.insync.replicas asks for",
    20: "written, but fewer replicas were in sync than min.insync.replicas asks for",
    21: "the broker does not accept this value of acks",
    22: "the generation of the consumer group is not current",
    23: "the group member's protocols do not match the group's",
    24: "the group id is not valid",
    25: "the coordinator does not know this group member",
    26: "the session timeout is outside the range the broker allows",
    27: "the group is rebalancing",
    28: "the offset commit is larger than the broker allows",
    29: "the principal may not use this topic; check its ACLs",
    30: "the principal may not use this group; check its ACLs",
    31: "the principal may not do this on the cluster; check its ACLs",
    32: "the record's timestamp is outside the range the topic accepts",
    33: "the broker does not offer this SASL mechanism",
    34: "the broker did not expect this request in the current authentication state",
    35: "the broker does not support this version of the request",
    36: "the topic exists already",
    37: "the number of partitions is below 1",
    38: "the replication factor is below 1 or above the number of brokers",
    39: "the replica assignment is not valid",
    40: "the configuration is not valid",
    41: "the broker is not the controller",
    42: "the broker could not make sense of the request",
    43: "the topic's message format does not support the request",
    44: "a policy of the cluster refused the request",
    45: "the broker got a batch out of sequence",
    46: "the broker has this batch already",
    47: "the producer's epoch is older than the newest the broker knows",
    48: "the transaction is not in a state that allows this",
    49: "the producer id does not belong to the transactional id",
    50: "transaction_timeout_ms is larger than the broker's transaction.max.timeout.ms",
    51: "the coordinator is still completing the previous transaction",
    52: "the transaction coordinator was fenced",
    53: "the principal may not use this transactional id; check its ACLs",
    54: "security features are disabled on the broker",
    55: "the broker did not try because another part of the request failed",
    56: "the broker cannot write to its disk",
    57: "the log directory does not exist on the broker",
    58: "the broker refused the credentials",
    59: "the broker has no state for this producer id; its records may have expired",
    60: "a partition reassignment is in progress",
    61: "delegation tokens are disabled on the broker",
    62: "the broker does not know the delegation token",
    63: "the principal does not own the delegation token",
    64: "delegation token requests are not allowed on this connection",
    65: "the principal may not use this delegation token",
    66: "the delegation token expired",
    67: "the principal type is not supported",
    68: "the group is not empty",
    69: "the group does not exist",
    70: "the fetch session does not exist",
    71: "the fetch session's epoch is not valid",
    72: "the leader has no listener that matches the one the request came through",
    73: "topic deletion is disabled",
    74: "the leader epoch is older than the broker's",
    75: "the leader epoch is newer than the broker's",
    76: "the broker does not support this compression type",
    77: "the broker epoch changed",
    78: "the leader's high watermark has not caught up yet",
    79: "the group member needs an id first",
    80: "the preferred leader was not available",
    81: "the group is full",
    82: "another member with the same group.instance.id took over",
    83: "no eligible leader is available",
    84: "the partition needs no election",
    85: "no partition reassignment is in progress",
    86: "the group is subscribed to the topic",
    87: "the broker refused one or more records of the batch",
    88: "offsets of an open transaction are still unstable",
    89: "the quota is used up for now",
    90: "another producer with the same transactional id took over",
    91: "the resource does not exist",
    92: "the request named a resource twice",
    93: "the credential does not meet the requirements",
    94: "the set of voters does not match",
    95: "the update version is not valid",
    96: "the features could not be updated",
    97: "the controller could not read the forwarded principal",
    98: "the snapshot does not exist",
    99: "the position is outside the snapshot",
    100: "the broker does not host a topic with this id",
    101: "the broker id is in use",
    102: "the broker id is not registered",
    103: "the topic id does not match the one in the request",
    104: "the cluster id does not match the one in the request",
    105: "the transactional id does not exist",
    106: "the fetch session met an unexpected topic id",
    107: "the replica may not join the in-sync set",
    108: "a new leader was elected",
    109: "the offset moved to tiered storage",
    110: "the epoch of the group member was fenced",
    111: "the group.instance.id is still held by another member",
    112: "the coordinator does not support the assignor",
    113: "the epoch of the group member is out of date",
    114: "the request came to the wrong kind of endpoint",
    115: "this kind of endpoint is not supported",
    116: "the controller id is unknown",
    117: "the telemetry subscription is out of date",
    118: "the telemetry data are larger than the broker accepts",
    119: "the broker registration is not valid",
    120: "the transaction must be aborted before work can go on",
    121: "the record is not in a state that allows this",
    122: "the share session does not exist",
    123: "the share session's epoch is not valid",
    124: "the share coordinator's state epoch is out of date",
    125: "the voter's key is not valid",
    126: "the voter is in the set already",
    127: "the voter is not in the set",
    128: "the regular expression is not valid",
    129: "the client's view of the cluster is out of date; it must bootstrap again",
    130: "the streams topology is not valid",
    131: "the streams topology epoch is not valid",
    132: "the streams topology epoch is out of date",
    133: "the broker has no room for another share session",
}


def _row(code: Code) -> ErrorCode:
    number = int(code)
    return ErrorCode(
        number=number,
        name=code.name,
        retriable=number in _RETRIABLE,
        refresh_metadata=number in _REFRESH_METADATA,
        refresh_coordinator=number in _REFRESH_COORDINATOR,
        outcome=Outcome.REJECTED if number in _REJECTED else Outcome.UNKNOWN,
        text=_TEXTS[number],
    )


_TABLE: Final[dict[int, ErrorCode]] = {int(code): _row(code) for code in Code}


def error_code(number: int) -> ErrorCode:
    """The row of an error code.

    A number that Kafka had not assigned when this was written gets a row of its own: not retriable,
    outcome UNKNOWN, as Java maps it to UNKNOWN_SERVER_ERROR.
    """
    row = _TABLE.get(number)
    if row is not None:
        return row
    return ErrorCode(
        number=number,
        name=f"UNKNOWN_{number}",
        retriable=False,
        refresh_metadata=False,
        refresh_coordinator=False,
        outcome=Outcome.UNKNOWN,
        text="an error code newer than this client",
    )
