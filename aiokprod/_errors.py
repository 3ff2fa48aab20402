"""The table of Kafka's error codes. Each row defines a code's meaning and how the producer reacts.

A few codes are also handled by name elsewhere, for example the sequence errors of Produce.
docs/design/error-codes.md lists all such places, and the code that reads each field of a row.

Source: the error table of the Kafka protocol guide and Java `o.a.k.common.protocol.Errors` of the
4.x line. `retriable` and the refresh flags follow the Java exception hierarchy
(`RetriableException`, `InvalidMetadataException`, `RefreshRetriableException` for coordinators).
BROKER_NOT_AVAILABLE is the exception; a comment at its row gives the reason.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    from collections.abc import Mapping


class Outcome(enum.Enum):
    """The outcome of a failed send: whether the record can be in the log."""

    NOT_SENT = "not_sent"
    """No byte of the record ever reached a broker; sending it again cannot duplicate it."""
    REJECTED = "rejected"
    """A broker rejected the record and did not append it; sending it again cannot duplicate it."""
    UNKNOWN = "unknown"
    """The record may or may not be in the log; sending it again may duplicate it."""

    @property
    def definite(self) -> bool:
        """True if the record is certainly not in the log."""
        return self is not Outcome.UNKNOWN


class TxnApi(enum.Enum):
    """The requests that a transactional producer sends to coordinators."""

    FIND = "FindCoordinator"
    INIT = "InitProducerId"
    ADD_PARTITIONS = "AddPartitionsToTxn"
    ADD_OFFSETS = "AddOffsetsToTxn"
    COMMIT_OFFSETS = "TxnOffsetCommit"
    END = "EndTxn"


class ErrorAction(enum.Enum):
    """The action of a transactional producer after an error code in the response of a
    coordinator."""

    OK = "ok"
    RETRY = "retry"  # repeat the request to the same broker
    LOOKUP = "lookup"  # find the coordinator again, then repeat the request
    LOST = "lost"  # the coordinator may have processed the request: repeat it
    ABORT = "abort"  # the transaction must be aborted
    FENCED = "fenced"  # another producer uses the transactional id
    FATAL = "fatal"  # the producer must be closed


@dataclass(frozen=True, slots=True)
class ErrorCode:
    """One row of the error table.

    Pickling and copying a row keeps only its number; the row is looked up again.

    Attributes:
        number: the int16 on the wire.
        text: meaning of the code, used in error messages.
        name: Kafka's name of the code.
        retriable: the same request may succeed later, and the producer repeats it. This applies to
            all requests: Produce, requests to coordinators, and those of the Spark sink. Idempotent
            producers also resend a batch after OUT_OF_ORDER_SEQUENCE_NUMBER,
            INVALID_PRODUCER_EPOCH and UNKNOWN_PRODUCER_ID, with another epoch or sequence number.
        refresh_metadata: the cause may be stale metadata, so metadata must be fetched again.
        refresh_coordinator: the coordinator must be looked up again.
        outcome: whether records of a Produce request that failed with this code can be in the log.
            REJECTED only if every broker version that responds to Produce with it checks first and
            appends afterwards.
        exception: name of the class in `aiokprod.errors` that is raised for the code.
        hint: how to fix a failed Produce request; empty if unknown.
        spark_hint: the hint for tasks of the Spark sink, in terms of its options.
        too_large: after Produce: the batch is split; a batch of one record fails.
        fatal_idempotent: after Produce: an idempotent or transactional producer can send no more
            records.
        fatal_transactional: after Produce: a transactional producer can send no more records; also
            set in every row with `fatal_idempotent`. Any other code that fails a record only makes
            the transaction abortable.
        fails_topic: after Metadata: calls that wait for the topic fail at once. With any other code
            they keep waiting until max_block_ms.
        coordinator_action: action after a coordinator's response with this code; None for the
            default of `action_after`.
        coordinator_actions: actions that replace `coordinator_action` for individual requests.
        refused_before_write: in every broker version, a transaction coordinator that responds with
            this code has not written to its log, so the request has changed nothing. If a write
            fails or times out, the coordinator responds with COORDINATOR_NOT_AVAILABLE,
            NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS, UNKNOWN_SERVER_ERROR or the code of the
            write. After these codes, the log may or may not contain the new state. Source: Kafka
            `TransactionStateManager.appendTransactionToLog`.
    """

    number: int
    text: str
    name: str = ""
    retriable: bool = False
    refresh_metadata: bool = False
    refresh_coordinator: bool = False
    outcome: Outcome = Outcome.UNKNOWN
    exception: str = field(default="BrokerError", repr=False)
    hint: str = field(default="", repr=False)
    spark_hint: str = field(default="", repr=False)
    too_large: bool = field(default=False, repr=False)
    fatal_idempotent: bool = field(default=False, repr=False)
    fatal_transactional: bool = field(default=False, repr=False)
    fails_topic: bool = field(default=False, repr=False)
    coordinator_action: ErrorAction | None = field(default=None, repr=False)
    coordinator_actions: Mapping[TxnApi, ErrorAction] = field(
        default_factory=dict, repr=False, hash=False
    )
    refused_before_write: bool = field(default=False, repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return error_code, (self.number,)

    def action_after(self, call: TxnApi) -> ErrorAction:
        """Return the action of a transactional producer if a coordinator responds to `call` with
        this code.

        Defaults for rows without an entry: the request is repeated if the code is retriable, after
        a new look-up of the coordinator if the row has `refresh_coordinator`. All other codes are
        fatal, except in responses to AddPartitionsToTxn, where aborting the transaction is enough.
        Source: Java `TransactionManager` request handlers, `AddPartitionsToTxnHandler`.
        """
        action = self.coordinator_actions.get(call, self.coordinator_action)
        if action is not None:
            return action
        if self.refresh_coordinator:
            return ErrorAction.LOOKUP
        if self.retriable:
            return ErrorAction.RETRY
        return ErrorAction.ABORT if call is TxnApi.ADD_PARTITIONS else ErrorAction.FATAL


class Code(enum.IntEnum):
    """Every error code of Kafka 4.x by its protocol name; `Code.X.row` is its row.

    A comment beside `outcome=REJECTED` names the check in the broker's source that precedes the
    append. All other codes are UNKNOWN, because a record wrongly reported as not written would be
    sent twice. In particular, with acks=all `DelayedProduce.tryComplete` responds after the local
    append with NOT_LEADER_OR_FOLLOWER, REQUEST_TIMED_OUT, NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    KAFKA_STORAGE_ERROR (log directory offline) or UNKNOWN_TOPIC_OR_PARTITION (up to Kafka 2.3 if
    the replica was removed, since 2.4 if the topic is missing from the metadata cache). A flush
    that fails after the append in `UnifiedLog.append` also causes KAFKA_STORAGE_ERROR. Codes that
    no broker sends in response to Produce (LEADER_NOT_AVAILABLE, BROKER_NOT_AVAILABLE,
    REPLICA_NOT_AVAILABLE, LISTENER_NOT_FOUND, FENCED_LEADER_EPOCH, those of coordinators and
    groups) are UNKNOWN too.
    """

    row: ErrorCode

    def __new__(cls, row: ErrorCode) -> Self:
        code = int.__new__(cls, row.number)
        code._value_ = row.number
        return code

    def __init__(self, row: ErrorCode) -> None:
        self.row = replace(row, name=self._name_)

    UNKNOWN_SERVER_ERROR = ErrorCode(
        -1,
        "an unexpected error in the broker; its log shows the cause",
        # the broker may have failed anywhere between reading the request and responding to it
        coordinator_actions={TxnApi.END: ErrorAction.LOST},
    )
    NONE = ErrorCode(0, "no error", coordinator_action=ErrorAction.OK)
    OFFSET_OUT_OF_RANGE = ErrorCode(1, "the offset is outside the range the broker keeps")
    CORRUPT_MESSAGE = ErrorCode(
        2,
        "the broker found a damaged batch: CRC, size or layout did not match",
        retriable=True,
        # CRC and layout: UnifiedLog.analyzeAndValidateRecords, LogValidator
        outcome=Outcome.REJECTED,
        exception="RecordRejected",
    )
    UNKNOWN_TOPIC_OR_PARTITION = ErrorCode(
        3,
        "the broker does not host this topic or partition",
        retriable=True,
        refresh_metadata=True,
        exception="UnknownTopic",
    )
    INVALID_FETCH_SIZE = ErrorCode(4, "the fetch size is invalid")
    LEADER_NOT_AVAILABLE = ErrorCode(
        5, "the partition has no leader at the moment", retriable=True, refresh_metadata=True
    )
    NOT_LEADER_OR_FOLLOWER = ErrorCode(
        6,
        "the broker is not the leader (or a replica) of the partition",
        retriable=True,
        refresh_metadata=True,
    )
    REQUEST_TIMED_OUT = ErrorCode(
        7,
        "the broker did not finish the request in time",
        retriable=True,
        coordinator_actions={
            TxnApi.COMMIT_OFFSETS: ErrorAction.LOOKUP,
            TxnApi.END: ErrorAction.LOST,
        },
    )
    # Retriable, unlike in Java: it only says that the broker is starting or stopping.
    BROKER_NOT_AVAILABLE = ErrorCode(8, "the broker is not available", retriable=True)
    REPLICA_NOT_AVAILABLE = ErrorCode(
        9, "the replica is not available", retriable=True, refresh_metadata=True
    )
    MESSAGE_TOO_LARGE = ErrorCode(
        10,
        "the batch is larger than the topic's max.message.bytes",
        # Java `UnifiedLog.analyzeAndValidateRecords` checks the size of the batch, and the broker
        # checks it again if it has recompressed the batch.
        outcome=Outcome.REJECTED,
        exception="RecordTooLarge",
        too_large=True,
        hint="make the record smaller or raise the topic's max.message.bytes",
    )
    STALE_CONTROLLER_EPOCH = ErrorCode(11, "the controller moved to another broker")
    OFFSET_METADATA_TOO_LARGE = ErrorCode(12, "the metadata of the offset commit is too large")
    NETWORK_EXCEPTION = ErrorCode(
        13,
        "the connection broke before the response arrived",
        retriable=True,
        refresh_metadata=True,
    )
    COORDINATOR_LOAD_IN_PROGRESS = ErrorCode(
        14, "the coordinator is still loading its state", retriable=True
    )
    COORDINATOR_NOT_AVAILABLE = ErrorCode(
        15,
        "the coordinator is not available",
        retriable=True,
        refresh_coordinator=True,
        coordinator_actions={TxnApi.FIND: ErrorAction.RETRY},
    )
    NOT_COORDINATOR = ErrorCode(
        16,
        "the broker is not the coordinator",
        retriable=True,
        refresh_coordinator=True,
        coordinator_actions={TxnApi.FIND: ErrorAction.RETRY},
    )
    INVALID_TOPIC_EXCEPTION = ErrorCode(
        17,
        "the topic name is not valid",
        # internal topic: ReplicaManager.appendToLocalLog, before the partition is looked up
        outcome=Outcome.REJECTED,
        exception="InvalidTopic",
        fails_topic=True,
    )
    RECORD_LIST_TOO_LARGE = ErrorCode(
        18,
        "the batch is larger than the broker's log segment",
        # larger than a segment: UnifiedLog.append, before the segment is rolled
        outcome=Outcome.REJECTED,
        exception="RecordRejected",
        too_large=True,
    )
    NOT_ENOUGH_REPLICAS = ErrorCode(
        19,
        "fewer replicas are in sync than min.insync.replicas requires",
        retriable=True,
        # Partition.appendRecordsToLeader (size of the ISR), or transaction verification
        outcome=Outcome.REJECTED,
        hint="bring replicas back, or lower the topic's min.insync.replicas",
    )
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = ErrorCode(
        20,
        "written, but fewer replicas were in sync than min.insync.replicas requires",
        retriable=True,
    )
    INVALID_REQUIRED_ACKS = ErrorCode(
        21,
        "the broker does not accept this value of acks",
        outcome=Outcome.REJECTED,  # acks out of range: first check of ReplicaManager.appendRecords
    )
    ILLEGAL_GENERATION = ErrorCode(
        22,
        "the generation of the consumer group is not current",
        coordinator_actions={TxnApi.COMMIT_OFFSETS: ErrorAction.ABORT},
    )
    INCONSISTENT_GROUP_PROTOCOL = ErrorCode(
        23, "the group member's protocols do not match the group's"
    )
    INVALID_GROUP_ID = ErrorCode(24, "the group id is not valid")
    UNKNOWN_MEMBER_ID = ErrorCode(
        25,
        "the coordinator does not know this group member",
        coordinator_actions={TxnApi.COMMIT_OFFSETS: ErrorAction.ABORT},
    )
    INVALID_SESSION_TIMEOUT = ErrorCode(
        26, "the session timeout is outside the range the broker allows"
    )
    REBALANCE_IN_PROGRESS = ErrorCode(27, "the group is rebalancing")
    INVALID_COMMIT_OFFSET_SIZE = ErrorCode(28, "the offset commit is larger than the broker allows")
    TOPIC_AUTHORIZATION_FAILED = ErrorCode(
        29,
        "the principal may not use this topic: grant Write on the topic; later sends then succeed",
        outcome=Outcome.REJECTED,  # KafkaApis.handleProduceRequest: ACL of the topic
        exception="AuthorizationError",
        fails_topic=True,
        coordinator_action=ErrorAction.ABORT,
        spark_hint="grant WRITE and DESCRIBE on the topic; delivery=exactly_once also needs READ, "
        "for the markers that it commits as offsets",
        refused_before_write=True,
    )
    GROUP_AUTHORIZATION_FAILED = ErrorCode(
        30,
        "the principal may not use this group: grant Read on the group",
        exception="AuthorizationError",
        coordinator_action=ErrorAction.ABORT,
        spark_hint="grant READ on groups with the prefix of transactionalIdPrefix",
        refused_before_write=True,
    )
    CLUSTER_AUTHORIZATION_FAILED = ErrorCode(
        31,
        "the principal lacks a permission on the cluster",
        outcome=Outcome.REJECTED,  # KafkaApis.handleProduceRequest: ACL for idempotence
        exception="AuthorizationError",
        fatal_idempotent=True,
        fatal_transactional=True,
        # a later call repeats the request and succeeds once the ACL is granted (Java 4.0+)
        coordinator_actions={TxnApi.INIT: ErrorAction.ABORT},
        hint="grant IdempotentWrite on the cluster, or set enable_idempotence=False",
        spark_hint="brokers before 2.8 require IDEMPOTENT_WRITE on the cluster for idempotent "
        "producers: grant it, or set kafka.enable.idempotence=false",
        refused_before_write=True,
    )
    INVALID_TIMESTAMP = ErrorCode(
        32,
        "the record's timestamp is outside the range the topic accepts",
        outcome=Outcome.REJECTED,  # LogValidator: timestamp
        exception="RecordRejected",
        hint="compare the record's timestamp with the broker's clock and the topic's "
        "message.timestamp.before.max.ms and message.timestamp.after.max.ms",
    )
    UNSUPPORTED_SASL_MECHANISM = ErrorCode(
        33, "the broker does not offer this SASL mechanism", exception="AuthenticationError"
    )
    ILLEGAL_SASL_STATE = ErrorCode(
        34,
        "the broker did not expect this request in the current authentication state",
        exception="AuthenticationError",
    )
    UNSUPPORTED_VERSION = ErrorCode(
        35,
        "the broker does not support this version of the request",
        outcome=Outcome.REJECTED,  # version of the request: KafkaApis, before the handler
        exception="UnsupportedVersion",
        fatal_idempotent=True,
        fatal_transactional=True,
        refused_before_write=True,
    )
    TOPIC_ALREADY_EXISTS = ErrorCode(36, "the topic exists already")
    INVALID_PARTITIONS = ErrorCode(37, "the number of partitions is below 1")
    INVALID_REPLICATION_FACTOR = ErrorCode(
        38, "the replication factor is below 1 or above the number of brokers"
    )
    INVALID_REPLICA_ASSIGNMENT = ErrorCode(39, "the replica assignment is not valid")
    INVALID_CONFIG = ErrorCode(40, "the configuration is not valid")
    NOT_CONTROLLER = ErrorCode(41, "the broker is not the controller", retriable=True)
    INVALID_REQUEST = ErrorCode(
        42,
        "the broker found the request invalid",
        outcome=Outcome.REJECTED,  # the request as a whole: ProduceRequest, KafkaApis
        refused_before_write=True,
    )
    UNSUPPORTED_FOR_MESSAGE_FORMAT = ErrorCode(
        43,
        "the topic's message format does not support the request",
        outcome=Outcome.REJECTED,  # message format or codec: UnifiedLog.append, LogValidator
        exception="RecordRejected",
        hint="raise the topic's message.format.version",
    )
    POLICY_VIOLATION = ErrorCode(
        44,
        "a policy of the cluster refused the request",
        # not sent by Kafka; gateways respond with it to requests that they do not forward
        outcome=Outcome.REJECTED,
        exception="RecordRejected",
        fails_topic=True,
    )
    OUT_OF_ORDER_SEQUENCE_NUMBER = ErrorCode(
        45,
        "the broker got a batch out of sequence",
        # ProducerAppendInfo.checkSequence, part of analyzeAndValidateProducerState
        outcome=Outcome.REJECTED,
        hint="earlier sequence numbers of this partition are missing in the log, because records "
        "timed out or failed, or a broker has lost data",
    )
    DUPLICATE_SEQUENCE_NUMBER = ErrorCode(46, "the broker has this batch already")
    INVALID_PRODUCER_EPOCH = ErrorCode(
        47,
        "the producer's epoch is older than the newest the broker knows",
        # ProducerAppendInfo.checkProducerEpoch, before the append; or transaction verification
        outcome=Outcome.REJECTED,
        coordinator_action=ErrorAction.FENCED,
        refused_before_write=True,
    )
    INVALID_TXN_STATE = ErrorCode(
        48,
        "the transaction is not in a state that allows this",
        # transaction verification, or UnifiedLog.analyzeAndValidateProducerState
        outcome=Outcome.REJECTED,
        coordinator_actions={TxnApi.ADD_PARTITIONS: ErrorAction.FATAL},
        refused_before_write=True,
    )
    INVALID_PRODUCER_ID_MAPPING = ErrorCode(
        49,
        "the producer id does not belong to the transactional id",
        outcome=Outcome.REJECTED,  # transaction verification (AddPartitionsToTxn before the append)
        # Either the transactional id expired without traffic (transactional.id.expiration.ms), or
        # another producer took over and got another producer id. InitProducerId after the abort
        # shows which of the two happened. Java 3.x behaves like this; Java 4.x fails the producer.
        coordinator_action=ErrorAction.ABORT,
        coordinator_actions={TxnApi.FIND: ErrorAction.FATAL, TxnApi.INIT: ErrorAction.FATAL},
        refused_before_write=True,
    )
    INVALID_TRANSACTION_TIMEOUT = ErrorCode(
        50,
        "transaction_timeout_ms is larger than the broker's transaction.max.timeout.ms",
        spark_hint="lower kafka.transaction.timeout.ms, or raise transaction.max.timeout.ms of the "
        "brokers",
    )
    CONCURRENT_TRANSACTIONS = ErrorCode(
        51,
        "the coordinator is still completing the previous transaction",
        retriable=True,
        outcome=Outcome.REJECTED,  # transaction verification
        refused_before_write=True,
    )
    TRANSACTION_COORDINATOR_FENCED = ErrorCode(52, "the transaction coordinator was fenced")
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = ErrorCode(
        53,
        "the principal may not use this transactional id: grant Write on the transactional id",
        outcome=Outcome.REJECTED,  # KafkaApis.handleProduceRequest: ACL of the transactional id
        exception="AuthorizationError",
        fatal_transactional=True,
        coordinator_actions={
            TxnApi.INIT: ErrorAction.ABORT,  # see CLUSTER_AUTHORIZATION_FAILED
            TxnApi.ADD_PARTITIONS: ErrorAction.FATAL,
        },
        spark_hint="grant WRITE on transactional ids with the prefix of transactionalIdPrefix",
        refused_before_write=True,
    )
    SECURITY_DISABLED = ErrorCode(54, "security features are disabled on the broker")
    OPERATION_NOT_ATTEMPTED = ErrorCode(
        55,
        "the broker did not try because another part of the request failed",
        outcome=Outcome.REJECTED,  # transaction verification: another partition of it failed
        refused_before_write=True,
    )
    KAFKA_STORAGE_ERROR = ErrorCode(
        56, "the broker cannot write to its disk", retriable=True, refresh_metadata=True
    )
    LOG_DIR_NOT_FOUND = ErrorCode(57, "the log directory does not exist on the broker")
    SASL_AUTHENTICATION_FAILED = ErrorCode(
        58, "the broker refused the credentials", exception="AuthenticationError"
    )
    UNKNOWN_PRODUCER_ID = ErrorCode(
        59,
        "the broker has no state for this producer id; its records may have expired",
        outcome=Outcome.REJECTED,  # ProducerAppendInfo.checkSequence of Kafka 2.4 and older
        # brokers before 2.5 respond with this code instead of INVALID_PRODUCER_ID_MAPPING
        coordinator_actions={TxnApi.ADD_OFFSETS: ErrorAction.ABORT},
    )
    REASSIGNMENT_IN_PROGRESS = ErrorCode(60, "a partition reassignment is in progress")
    DELEGATION_TOKEN_AUTH_DISABLED = ErrorCode(61, "delegation tokens are disabled on the broker")
    DELEGATION_TOKEN_NOT_FOUND = ErrorCode(62, "the broker does not know the delegation token")
    DELEGATION_TOKEN_OWNER_MISMATCH = ErrorCode(
        63, "the principal does not own the delegation token"
    )
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = ErrorCode(
        64, "delegation token requests are not allowed on this connection"
    )
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = ErrorCode(
        65, "the principal may not use this delegation token", exception="AuthorizationError"
    )
    DELEGATION_TOKEN_EXPIRED = ErrorCode(66, "the delegation token expired")
    INVALID_PRINCIPAL_TYPE = ErrorCode(67, "the principal type is not supported")
    NON_EMPTY_GROUP = ErrorCode(68, "the group is not empty")
    GROUP_ID_NOT_FOUND = ErrorCode(69, "the group does not exist")
    FETCH_SESSION_ID_NOT_FOUND = ErrorCode(70, "the fetch session does not exist", retriable=True)
    INVALID_FETCH_SESSION_EPOCH = ErrorCode(
        71, "the fetch session's epoch is not valid", retriable=True
    )
    LISTENER_NOT_FOUND = ErrorCode(
        72,
        "the leader has no listener that matches the one the request came through",
        retriable=True,
        refresh_metadata=True,
    )
    TOPIC_DELETION_DISABLED = ErrorCode(73, "topic deletion is disabled")
    FENCED_LEADER_EPOCH = ErrorCode(
        74, "the leader epoch is older than the broker's", retriable=True, refresh_metadata=True
    )
    UNKNOWN_LEADER_EPOCH = ErrorCode(
        75, "the leader epoch is newer than the broker's", retriable=True
    )
    UNSUPPORTED_COMPRESSION_TYPE = ErrorCode(
        76,
        "the broker does not support this compression type",
        outcome=Outcome.REJECTED,  # LogValidator: codec
        exception="RecordRejected",
        hint="choose another compression_type",
    )
    STALE_BROKER_EPOCH = ErrorCode(77, "the broker epoch changed")
    OFFSET_NOT_AVAILABLE = ErrorCode(
        78, "the leader's high watermark has not caught up yet", retriable=True
    )
    MEMBER_ID_REQUIRED = ErrorCode(79, "the group member needs an id first")
    PREFERRED_LEADER_NOT_AVAILABLE = ErrorCode(
        80, "the preferred leader was not available", retriable=True, refresh_metadata=True
    )
    GROUP_MAX_SIZE_REACHED = ErrorCode(81, "the group is full")
    FENCED_INSTANCE_ID = ErrorCode(
        82,
        "another member with the same group.instance.id took over",
        coordinator_actions={TxnApi.COMMIT_OFFSETS: ErrorAction.ABORT},
    )
    ELIGIBLE_LEADERS_NOT_AVAILABLE = ErrorCode(
        83, "no eligible leader is available", retriable=True, refresh_metadata=True
    )
    ELECTION_NOT_NEEDED = ErrorCode(
        84, "the partition needs no election", retriable=True, refresh_metadata=True
    )
    NO_REASSIGNMENT_IN_PROGRESS = ErrorCode(85, "no partition reassignment is in progress")
    GROUP_SUBSCRIBED_TO_TOPIC = ErrorCode(86, "the group is subscribed to the topic")
    INVALID_RECORD = ErrorCode(
        87,
        "the broker rejected one or more records of the batch",
        outcome=Outcome.REJECTED,  # LogValidator, ProduceRequest.validateRecords
        exception="RecordRejected",
        hint="the broker rejected its content, e.g. no key on a compacted topic",
    )
    UNSTABLE_OFFSET_COMMIT = ErrorCode(
        88, "offsets of an open transaction are still unstable", retriable=True
    )
    THROTTLING_QUOTA_EXCEEDED = ErrorCode(89, "the quota is used up for now", retriable=True)
    PRODUCER_FENCED = ErrorCode(
        90,
        "another producer with the same transactional id took over",
        # ProducerAppendInfo.checkProducerEpoch until Kafka 2.6, or transaction verification
        outcome=Outcome.REJECTED,
        exception="ProducerFenced",
        fatal_transactional=True,
        coordinator_action=ErrorAction.FENCED,
        refused_before_write=True,
    )
    RESOURCE_NOT_FOUND = ErrorCode(91, "the resource does not exist")
    DUPLICATE_RESOURCE = ErrorCode(92, "the request named a resource twice")
    UNACCEPTABLE_CREDENTIAL = ErrorCode(93, "the credential does not meet the requirements")
    INCONSISTENT_VOTER_SET = ErrorCode(94, "the set of voters does not match")
    INVALID_UPDATE_VERSION = ErrorCode(95, "the update version is not valid")
    FEATURE_UPDATE_FAILED = ErrorCode(96, "the features could not be updated")
    PRINCIPAL_DESERIALIZATION_FAILURE = ErrorCode(
        97, "the controller could not read the forwarded principal"
    )
    SNAPSHOT_NOT_FOUND = ErrorCode(98, "the snapshot does not exist")
    POSITION_OUT_OF_RANGE = ErrorCode(99, "the position is outside the snapshot")
    UNKNOWN_TOPIC_ID = ErrorCode(
        100,
        "the broker does not host a topic with this id",
        retriable=True,
        refresh_metadata=True,
        outcome=Outcome.REJECTED,  # KafkaApis.handleProduceRequest: no topic with this id
        exception="UnknownTopic",
    )
    DUPLICATE_BROKER_REGISTRATION = ErrorCode(101, "the broker id is in use")
    BROKER_ID_NOT_REGISTERED = ErrorCode(102, "the broker id is not registered")
    INCONSISTENT_TOPIC_ID = ErrorCode(
        103,
        "the topic id does not match the one in the request",
        retriable=True,
        refresh_metadata=True,
        # ReplicaManager.appendToLocalLog: the partition has another topic id
        outcome=Outcome.REJECTED,
        exception="UnknownTopic",
    )
    INCONSISTENT_CLUSTER_ID = ErrorCode(104, "the cluster id does not match the one in the request")
    TRANSACTIONAL_ID_NOT_FOUND = ErrorCode(105, "the transactional id does not exist")
    FETCH_SESSION_TOPIC_ID_ERROR = ErrorCode(
        106, "the fetch session met an unexpected topic id", retriable=True
    )
    INELIGIBLE_REPLICA = ErrorCode(107, "the replica may not join the in-sync set")
    NEW_LEADER_ELECTED = ErrorCode(108, "a new leader was elected")
    OFFSET_MOVED_TO_TIERED_STORAGE = ErrorCode(109, "the offset moved to tiered storage")
    FENCED_MEMBER_EPOCH = ErrorCode(
        110,
        "the epoch of the group member was fenced",
        # see ILLEGAL_GENERATION; Java: fatal
        coordinator_actions={TxnApi.COMMIT_OFFSETS: ErrorAction.ABORT},
    )
    UNRELEASED_INSTANCE_ID = ErrorCode(111, "the group.instance.id is still held by another member")
    UNSUPPORTED_ASSIGNOR = ErrorCode(112, "the coordinator does not support the assignor")
    STALE_MEMBER_EPOCH = ErrorCode(
        113,
        "the epoch of the group member is out of date",
        # see ILLEGAL_GENERATION; Java: fatal
        coordinator_actions={TxnApi.COMMIT_OFFSETS: ErrorAction.ABORT},
    )
    MISMATCHED_ENDPOINT_TYPE = ErrorCode(114, "the request came to the wrong kind of endpoint")
    UNSUPPORTED_ENDPOINT_TYPE = ErrorCode(115, "this kind of endpoint is not supported")
    UNKNOWN_CONTROLLER_ID = ErrorCode(116, "the controller id is unknown")
    UNKNOWN_SUBSCRIPTION_ID = ErrorCode(117, "the telemetry subscription is out of date")
    TELEMETRY_TOO_LARGE = ErrorCode(118, "the telemetry data are larger than the broker accepts")
    INVALID_REGISTRATION = ErrorCode(119, "the broker registration is not valid")
    TRANSACTION_ABORTABLE = ErrorCode(
        120,
        "the transaction must be aborted before the producer can continue",
        outcome=Outcome.REJECTED,  # transaction verification
        exception="AbortableTransactionError",
        coordinator_action=ErrorAction.ABORT,
        refused_before_write=True,
    )
    INVALID_RECORD_STATE = ErrorCode(121, "the record is not in a state that allows this")
    SHARE_SESSION_NOT_FOUND = ErrorCode(122, "the share session does not exist", retriable=True)
    INVALID_SHARE_SESSION_EPOCH = ErrorCode(
        123, "the share session's epoch is not valid", retriable=True
    )
    FENCED_STATE_EPOCH = ErrorCode(124, "the share coordinator's state epoch is out of date")
    INVALID_VOTER_KEY = ErrorCode(125, "the voter's key is not valid")
    DUPLICATE_VOTER = ErrorCode(126, "the voter is in the set already")
    VOTER_NOT_FOUND = ErrorCode(127, "the voter is not in the set")
    INVALID_REGULAR_EXPRESSION = ErrorCode(128, "the regular expression is not valid")
    REBOOTSTRAP_REQUIRED = ErrorCode(
        129, "the client's view of the cluster is out of date; it must bootstrap again"
    )
    STREAMS_INVALID_TOPOLOGY = ErrorCode(130, "the streams topology is not valid")
    STREAMS_INVALID_TOPOLOGY_EPOCH = ErrorCode(131, "the streams topology epoch is not valid")
    STREAMS_TOPOLOGY_FENCED = ErrorCode(132, "the streams topology epoch is out of date")
    SHARE_SESSION_LIMIT_REACHED = ErrorCode(
        133, "the broker has no room for another share session", retriable=True
    )


_ROWS: Final = {code.value: code.row for code in Code}


def error_code(number: int) -> ErrorCode:
    """Return the row of an error code.

    A number that is not in the table gets a new row: not retriable, outcome UNKNOWN. Java likewise
    maps such numbers to UNKNOWN_SERVER_ERROR.
    """
    row = _ROWS.get(number)
    if row is not None:
        return row
    return ErrorCode(number, "an error code newer than this client", name=f"UNKNOWN_{number}")
