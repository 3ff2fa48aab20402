"""The error table compared with the protocol's table, and properties of every exception."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

from aiokprod import errors
from aiokprod._errors import Code, ErrorAction, ErrorCode, Outcome, TxnApi, error_code
from aiokprod.errors import (
    AbortableTransactionError,
    AuthenticationError,
    AuthorizationError,
    BrokerError,
    ConfigError,
    Disconnected,
    InvalidTopic,
    KafkaError,
    KafkaTimeout,
    MetadataTimeout,
    ProducerFenced,
    ProtocolError,
    RecordRejected,
    RecordTooLarge,
    RequestTimedOut,
    UnknownTopic,
    UnsupportedVersion,
    WouldBlock,
    broker_error,
)
from tests.reference.error_codes import RETRIED_UNLIKE_IN_JAVA

# Columns 1 to 4 are taken from `org.apache.kafka.common.protocol.Errors` of Kafka 4.3.1: number,
# name, whether the exception is a RetriableException (R), and whether it is an
# InvalidMetadataException (M) or a RefreshRetriableException (C). Column 5: after this error for a
# Produce request, can the records be in the log? "no" only if every broker version checks before it
# appends. "?" also for codes that brokers do not return for Produce, from which nothing definite
# follows.
TABLE = """
-1 UNKNOWN_SERVER_ERROR - - ?
0 NONE - - yes
1 OFFSET_OUT_OF_RANGE - - ?
2 CORRUPT_MESSAGE R - no
3 UNKNOWN_TOPIC_OR_PARTITION R M ?
4 INVALID_FETCH_SIZE - - ?
5 LEADER_NOT_AVAILABLE R M ?
6 NOT_LEADER_OR_FOLLOWER R M ?
7 REQUEST_TIMED_OUT R - ?
8 BROKER_NOT_AVAILABLE - - ?
9 REPLICA_NOT_AVAILABLE R M ?
10 MESSAGE_TOO_LARGE - - no
11 STALE_CONTROLLER_EPOCH - - ?
12 OFFSET_METADATA_TOO_LARGE - - ?
13 NETWORK_EXCEPTION R M ?
14 COORDINATOR_LOAD_IN_PROGRESS R - ?
15 COORDINATOR_NOT_AVAILABLE R C ?
16 NOT_COORDINATOR R C ?
17 INVALID_TOPIC_EXCEPTION - - no
18 RECORD_LIST_TOO_LARGE - - no
19 NOT_ENOUGH_REPLICAS R - no
20 NOT_ENOUGH_REPLICAS_AFTER_APPEND R - ?
21 INVALID_REQUIRED_ACKS - - no
22 ILLEGAL_GENERATION - - ?
23 INCONSISTENT_GROUP_PROTOCOL - - ?
24 INVALID_GROUP_ID - - ?
25 UNKNOWN_MEMBER_ID - - ?
26 INVALID_SESSION_TIMEOUT - - ?
27 REBALANCE_IN_PROGRESS - - ?
28 INVALID_COMMIT_OFFSET_SIZE - - ?
29 TOPIC_AUTHORIZATION_FAILED - - no
30 GROUP_AUTHORIZATION_FAILED - - ?
31 CLUSTER_AUTHORIZATION_FAILED - - no
32 INVALID_TIMESTAMP - - no
33 UNSUPPORTED_SASL_MECHANISM - - ?
34 ILLEGAL_SASL_STATE - - ?
35 UNSUPPORTED_VERSION - - no
36 TOPIC_ALREADY_EXISTS - - ?
37 INVALID_PARTITIONS - - ?
38 INVALID_REPLICATION_FACTOR - - ?
39 INVALID_REPLICA_ASSIGNMENT - - ?
40 INVALID_CONFIG - - ?
41 NOT_CONTROLLER R - ?
42 INVALID_REQUEST - - no
43 UNSUPPORTED_FOR_MESSAGE_FORMAT - - no
44 POLICY_VIOLATION - - no
45 OUT_OF_ORDER_SEQUENCE_NUMBER - - no
46 DUPLICATE_SEQUENCE_NUMBER - - yes
47 INVALID_PRODUCER_EPOCH - - no
48 INVALID_TXN_STATE - - no
49 INVALID_PRODUCER_ID_MAPPING - - no
50 INVALID_TRANSACTION_TIMEOUT - - ?
51 CONCURRENT_TRANSACTIONS R - no
52 TRANSACTION_COORDINATOR_FENCED - - ?
53 TRANSACTIONAL_ID_AUTHORIZATION_FAILED - - no
54 SECURITY_DISABLED - - ?
55 OPERATION_NOT_ATTEMPTED - - no
56 KAFKA_STORAGE_ERROR R M ?
57 LOG_DIR_NOT_FOUND - - ?
58 SASL_AUTHENTICATION_FAILED - - ?
59 UNKNOWN_PRODUCER_ID - - no
60 REASSIGNMENT_IN_PROGRESS - - ?
61 DELEGATION_TOKEN_AUTH_DISABLED - - ?
62 DELEGATION_TOKEN_NOT_FOUND - - ?
63 DELEGATION_TOKEN_OWNER_MISMATCH - - ?
64 DELEGATION_TOKEN_REQUEST_NOT_ALLOWED - - ?
65 DELEGATION_TOKEN_AUTHORIZATION_FAILED - - ?
66 DELEGATION_TOKEN_EXPIRED - - ?
67 INVALID_PRINCIPAL_TYPE - - ?
68 NON_EMPTY_GROUP - - ?
69 GROUP_ID_NOT_FOUND - - ?
70 FETCH_SESSION_ID_NOT_FOUND R - ?
71 INVALID_FETCH_SESSION_EPOCH R - ?
72 LISTENER_NOT_FOUND R M ?
73 TOPIC_DELETION_DISABLED - - ?
74 FENCED_LEADER_EPOCH R M ?
75 UNKNOWN_LEADER_EPOCH R - ?
76 UNSUPPORTED_COMPRESSION_TYPE - - no
77 STALE_BROKER_EPOCH - - ?
78 OFFSET_NOT_AVAILABLE R - ?
79 MEMBER_ID_REQUIRED - - ?
80 PREFERRED_LEADER_NOT_AVAILABLE R M ?
81 GROUP_MAX_SIZE_REACHED - - ?
82 FENCED_INSTANCE_ID - - ?
83 ELIGIBLE_LEADERS_NOT_AVAILABLE R M ?
84 ELECTION_NOT_NEEDED R M ?
85 NO_REASSIGNMENT_IN_PROGRESS - - ?
86 GROUP_SUBSCRIBED_TO_TOPIC - - ?
87 INVALID_RECORD - - no
88 UNSTABLE_OFFSET_COMMIT R - ?
89 THROTTLING_QUOTA_EXCEEDED R - ?
90 PRODUCER_FENCED - - no
91 RESOURCE_NOT_FOUND - - ?
92 DUPLICATE_RESOURCE - - ?
93 UNACCEPTABLE_CREDENTIAL - - ?
94 INCONSISTENT_VOTER_SET - - ?
95 INVALID_UPDATE_VERSION - - ?
96 FEATURE_UPDATE_FAILED - - ?
97 PRINCIPAL_DESERIALIZATION_FAILURE - - ?
98 SNAPSHOT_NOT_FOUND - - ?
99 POSITION_OUT_OF_RANGE - - ?
100 UNKNOWN_TOPIC_ID R M no
101 DUPLICATE_BROKER_REGISTRATION - - ?
102 BROKER_ID_NOT_REGISTERED - - ?
103 INCONSISTENT_TOPIC_ID R M no
104 INCONSISTENT_CLUSTER_ID - - ?
105 TRANSACTIONAL_ID_NOT_FOUND - - ?
106 FETCH_SESSION_TOPIC_ID_ERROR R - ?
107 INELIGIBLE_REPLICA - - ?
108 NEW_LEADER_ELECTED - - ?
109 OFFSET_MOVED_TO_TIERED_STORAGE - - ?
110 FENCED_MEMBER_EPOCH - - ?
111 UNRELEASED_INSTANCE_ID - - ?
112 UNSUPPORTED_ASSIGNOR - - ?
113 STALE_MEMBER_EPOCH - - ?
114 MISMATCHED_ENDPOINT_TYPE - - ?
115 UNSUPPORTED_ENDPOINT_TYPE - - ?
116 UNKNOWN_CONTROLLER_ID - - ?
117 UNKNOWN_SUBSCRIPTION_ID - - ?
118 TELEMETRY_TOO_LARGE - - ?
119 INVALID_REGISTRATION - - ?
120 TRANSACTION_ABORTABLE - - no
121 INVALID_RECORD_STATE - - ?
122 SHARE_SESSION_NOT_FOUND R - ?
123 INVALID_SHARE_SESSION_EPOCH R - ?
124 FENCED_STATE_EPOCH - - ?
125 INVALID_VOTER_KEY - - ?
126 DUPLICATE_VOTER - - ?
127 VOTER_NOT_FOUND - - ?
128 INVALID_REGULAR_EXPRESSION - - ?
129 REBOOTSTRAP_REQUIRED - - ?
130 STREAMS_INVALID_TOPOLOGY - - ?
131 STREAMS_INVALID_TOPOLOGY_EPOCH - - ?
132 STREAMS_TOPOLOGY_FENCED - - ?
133 SHARE_SESSION_LIMIT_REACHED R - ?
"""

ROWS = [tuple(line.split()) for line in TABLE.strip().splitlines()]

CLASSES = [
    cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, KafkaError)
]


@pytest.mark.parametrize(("number", "name", "retriable", "refresh", "log"), ROWS)
def test_error_code_of_protocol_table_has_its_flags(
    number: str, name: str, retriable: str, refresh: str, log: str
) -> None:
    row = error_code(int(number))
    assert row.number == int(number)
    assert row.name == name == Code(int(number)).name  # type: ignore[arg-type]
    assert row.retriable == ((retriable == "R") != (row.number in RETRIED_UNLIKE_IN_JAVA))
    assert row.refresh_metadata == (refresh == "M")
    assert row.refresh_coordinator == (refresh == "C")
    assert row.outcome is (Outcome.REJECTED if log == "no" else Outcome.UNKNOWN)
    assert row.text
    assert row.text[0].islower() or row.text.startswith("SASL")


def test_error_table_covers_every_code_once() -> None:
    assert [int(row[0]) for row in ROWS] == list(range(-1, 134)) == [int(code) for code in Code]


def test_error_table_has_the_sizes_of_the_java_hierarchy() -> None:
    rows = [error_code(int(code)) for code in Code]
    in_java = {row.number for row in rows if row.retriable} ^ RETRIED_UNLIKE_IN_JAVA
    assert len(in_java) == 32
    assert sum(row.refresh_metadata for row in rows) == 13
    assert sum(row.refresh_coordinator for row in rows) == 2


@pytest.mark.parametrize("code", Code)
def test_row_of_a_code_is_the_only_one_and_agrees_with_itself(code: Code) -> None:
    row = code.row
    assert error_code(code) is row
    assert (row.number, row.name) == (code.value, code.name)
    assert issubclass(getattr(errors, row.exception), KafkaError)
    assert type(broker_error(code, "t-0")).__name__ == row.exception
    assert pickle.loads(pickle.dumps(row)) is row
    assert copy.deepcopy(row) is row
    assert {row: code}[error_code(code)] is code
    # An error that is fatal for an idempotent producer is fatal for a transactional producer, too.
    # A fatal error is never retriable.
    assert row.fatal_transactional >= row.fatal_idempotent
    assert not (row.retriable and (row.fatal_transactional or row.fails_topic or row.too_large))
    assert row.retriable >= (row.refresh_metadata or row.refresh_coordinator)


@pytest.mark.parametrize("call", TxnApi)
@pytest.mark.parametrize("code", [code for code in Code if code is not Code.NONE])
def test_coordinator_is_asked_again_after_the_codes_that_are_retriable(
    code: Code, call: TxnApi
) -> None:
    again = {ErrorAction.RETRY, ErrorAction.LOOKUP, ErrorAction.LOST}
    in_doubt = call is TxnApi.END and code is Code.UNKNOWN_SERVER_ERROR
    assert (code.row.action_after(call) in again) == (code.row.retriable or in_doubt)


@pytest.mark.parametrize("call", TxnApi)
def test_coordinator_answers_no_error_or_one_newer_than_the_table(call: TxnApi) -> None:
    assert Code.NONE.row.action_after(call) is ErrorAction.OK
    unknown = ErrorAction.ABORT if call is TxnApi.ADD_PARTITIONS else ErrorAction.FATAL
    assert error_code(999).action_after(call) is unknown


def test_error_texts_are_all_different() -> None:
    assert len({error_code(int(code)).text for code in Code}) == len(Code)


@pytest.mark.parametrize("number", [-2, max(Code) + 1, 999, -32768, 32767])
def test_error_code_newer_than_the_table_is_unknown_and_final(number: int) -> None:
    row = error_code(number)
    assert row.name == f"UNKNOWN_{number}"
    assert not row.retriable
    assert not row.refresh_metadata
    assert row.outcome is Outcome.UNKNOWN


def test_outcome_definite_is_false_only_for_unknown() -> None:
    assert [outcome.definite for outcome in Outcome] == [True, True, False]
    assert [outcome.value for outcome in Outcome] == ["not_sent", "rejected", "unknown"]


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize("code", [None, error_code(6), error_code(4711)])
def test_every_exception_survives_pickling_and_copying(
    cls: type[KafkaError], code: ErrorCode | None
) -> None:
    original = cls("a-0: it failed", code=code, outcome=Outcome.REJECTED, retriable=True)
    original.add_note("a note")
    vars(original)["details"] = {"attempts": 3}
    for again in (pickle.loads(pickle.dumps(original)), copy.copy(original), original.copy()):
        assert type(again) is cls
        assert again is not original
        assert (again.message, again.code, again.outcome, again.retriable) == (
            original.message,
            original.code,
            Outcome.REJECTED,
            True,
        )
        assert str(again) == str(original)
        assert repr(again) == repr(original)
        assert again.args == ("a-0: it failed",)
        assert vars(again)["details"] == {"attempts": 3}
        assert again.__notes__ == ["a note"]


FIELDS = ("message", "code", "outcome", "retriable", "topic", "partition")


def fields(error: KafkaError) -> list[Any]:
    return [getattr(error, name) for name in FIELDS]


class OrderRefused(RecordRejected):
    """A user's subclass with other arguments and additional attributes."""

    def __init__(self, order: int, *, customer: str) -> None:
        super().__init__(f"order {order}", outcome=Outcome.NOT_SENT, retriable=True)
        self.order = order
        self._message = self._code = customer


def made(cls: type[KafkaError]) -> KafkaError:
    """Return an error with a cause, a context, a note, a topic and a partition."""
    try:
        try:
            raise ValueError("context")
        except ValueError:
            raise cls("text") from ProtocolError("cause")
    except KafkaError as error:
        error.add_note("a note")
        return error.with_(topic="t", partition=3)


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize("name", FIELDS)
def test_fields_are_read_only(cls: type[KafkaError], name: str) -> None:
    error = made(cls)
    before = fields(error)
    with pytest.raises(AttributeError, match=f"property '{name}' of '{cls.__name__}' object"):
        setattr(error, name, before[FIELDS.index(name)])
    with pytest.raises(AttributeError):
        delattr(error, name)
    assert fields(error) == before


@pytest.mark.parametrize("cls", CLASSES)
def test_with_changes_what_is_given_and_keeps_the_rest(cls: type[KafkaError]) -> None:
    error = made(cls)
    before = fields(error)
    changes: dict[str, Any] = {
        "message": "other", "outcome": Outcome.REJECTED, "retriable": not error.retriable,
        "topic": "u", "partition": 4,
    }  # fmt: skip
    for name, value in changes.items():
        changed = error.with_(**{name: value})
        assert type(changed) is cls
        assert getattr(changed, name) == value
        others = {other: getattr(error, other) for other in FIELDS if other != name}
        if name == "topic":
            others["partition"] = None  # the partition belonged to the old topic
        assert {other: getattr(changed, other) for other in others} == others
        assert changed.args == (changed.message,)
    changed = error.with_(**changes)
    assert {name: getattr(changed, name) for name in changes} == changes
    assert str(changed).startswith("other")
    assert fields(error) == before
    assert error.args == ("text",)


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize("suppressed", [True, False])
def test_with_keeps_the_chain_the_traceback_and_the_notes(
    cls: type[KafkaError], suppressed: bool
) -> None:
    error = made(cls)
    error.__suppress_context__ = suppressed
    for changed in (error.with_(message="other"), copy.copy(error)):
        assert isinstance(changed.__cause__, ProtocolError)
        assert changed.__cause__ is error.__cause__
        assert isinstance(changed.__context__, ValueError)
        assert changed.__context__ is error.__context__
        assert changed.__suppress_context__ is suppressed
        assert changed.__traceback__ is error.__traceback__ is not None
        assert changed.__notes__ == ["a note"]
        changed.add_note("one more")
    assert error.__notes__ == ["a note"]
    assert KafkaError("plain").with_(message="other").__suppress_context__ is False


def test_copies_of_an_error_have_notes_of_their_own() -> None:
    error = made(KafkaError)
    first, second = error.copy(), error.copy()
    first.add_note("of the first task")
    assert (error.__notes__, second.__notes__) == (["a note"], ["a note"])
    assert first.__notes__ == ["a note", "of the first task"]
    assert first.__traceback__ is None


def test_copy_takes_the_place_of_a_record() -> None:
    error = made(KafkaError)
    assert fields(error.copy())[-2:] == ["t", 3]
    assert fields(error.copy(topic="u"))[-2:] == ["u", None]
    assert fields(error.copy(topic="u", partition=0))[-2:] == ["u", 0]
    assert fields(error.copy(partition=0))[-2:] == ["t", 0]


@pytest.mark.parametrize("cls", CLASSES)
def test_pickle_keeps_a_cause_of_this_package_and_drops_others(cls: type[KafkaError]) -> None:
    error = made(cls)
    again = pickle.loads(pickle.dumps(error))
    assert fields(again) == fields(error)
    assert (type(again.__cause__), str(again.__cause__)) == (ProtocolError, "cause")
    assert again.__suppress_context__ is True
    assert again.__notes__ == ["a note"]
    error.__cause__ = ValueError(lambda: None)  # cannot be pickled
    assert pickle.loads(pickle.dumps(error)).__cause__ is None
    error.__cause__ = error
    again = pickle.loads(pickle.dumps(error))
    assert again.__cause__ is again


def test_subclass_with_an_init_of_its_own_is_changed_copied_and_pickled() -> None:
    error = OrderRefused(17, customer="c")
    assert error.with_().args == error.args == ("order 17",)
    for again in (
        error.with_(outcome=Outcome.UNKNOWN), error.copy(), copy.copy(error),
        copy.deepcopy(error), pickle.loads(pickle.dumps(error)),
    ):  # fmt: skip
        assert type(again) is OrderRefused
        assert (again.order, again._message, again._code) == (17, "c", "c")
        assert (again.message, again.code, again.retriable) == ("order 17", None, True)
    assert error.with_(outcome=Outcome.UNKNOWN).outcome is Outcome.UNKNOWN
    assert error.outcome is Outcome.NOT_SENT


@pytest.mark.parametrize("cls", CLASSES)
def test_copy_is_chained_to_the_original(cls: type[KafkaError]) -> None:
    original = cls("text")
    first, second = original.copy(), original.copy()
    assert first.__cause__ is original
    assert second.__cause__ is original
    assert first is not second


@pytest.mark.parametrize("cls", CLASSES)
def test_class_defaults_apply_without_arguments(cls: type[KafkaError]) -> None:
    error = cls("text")
    assert error.outcome is cls.default_outcome
    assert error.retriable is cls.default_retriable
    expected = None if cls.default_code is None else error_code(cls.default_code)
    assert error.code == expected


def test_given_code_beats_the_class_and_arguments_beat_the_code() -> None:
    code = error_code(Code.CORRUPT_MESSAGE)
    assert BrokerError("x", code=code).retriable
    assert BrokerError("x", code=code).outcome is Outcome.REJECTED
    error = BrokerError("x", code=code, outcome=Outcome.UNKNOWN, retriable=False)
    assert (error.outcome, error.retriable) == (Outcome.UNKNOWN, False)


def test_text_names_the_code() -> None:
    assert str(KafkaError("plain")) == "plain"
    text = str(broker_error(19, "t-3 on broker 1"))
    assert text.startswith("t-3 on broker 1: fewer replicas")
    assert text.endswith("[NOT_ENOUGH_REPLICAS]")
    assert repr(ConfigError("x")) == "ConfigError('x', outcome=not_sent)"


@pytest.mark.parametrize(
    ("cls", "builtin"),
    [(ConfigError, ValueError), (KafkaTimeout, TimeoutError), (errors.NetworkError, OSError)],
)
def test_builtin_bases_catch_our_exceptions(
    cls: type[KafkaError], builtin: type[Exception]
) -> None:
    with pytest.raises(builtin):
        raise cls("text")


def test_outcomes_that_are_safe_to_resend_are_class_defaults() -> None:
    safe = (ConfigError, MetadataTimeout, errors.BufferTimeout, WouldBlock, errors.DialError)
    assert {cls.default_outcome for cls in safe} == {Outcome.NOT_SENT}
    unsafe = (errors.DeliveryTimeout, Disconnected, RequestTimedOut, ProtocolError)
    assert {cls.default_outcome for cls in unsafe} == {Outcome.UNKNOWN}


def test_client_made_errors_carry_the_code_java_gives_them() -> None:
    assert Disconnected("x").code == error_code(Code.NETWORK_EXCEPTION)
    assert RequestTimedOut("x").code == error_code(Code.REQUEST_TIMED_OUT)
    assert UnsupportedVersion("x").code == error_code(Code.UNSUPPORTED_VERSION)


@pytest.mark.parametrize(
    ("number", "cls"),
    [
        (3, UnknownTopic),
        (100, UnknownTopic),
        (103, UnknownTopic),
        (17, InvalidTopic),
        (29, AuthorizationError),
        (30, AuthorizationError),
        (31, AuthorizationError),
        (53, AuthorizationError),
        (33, AuthenticationError),
        (34, AuthenticationError),
        (58, AuthenticationError),
        (35, UnsupportedVersion),
        (10, RecordTooLarge),
        (32, RecordRejected),
        (87, RecordRejected),
        (90, ProducerFenced),
        (120, AbortableTransactionError),
        (-1, BrokerError),
        (45, BrokerError),
        (4711, BrokerError),
    ],
)
def test_broker_error_has_the_class_a_caller_acts_on(number: int, cls: type[KafkaError]) -> None:
    error = broker_error(number, "t-0")
    assert type(error) is cls
    assert error.code == error_code(number)
    assert error.outcome is error_code(number).outcome
    assert error.retriable is error_code(number).retriable
    assert broker_error(number, "t-0", outcome=Outcome.NOT_SENT).outcome is Outcome.NOT_SENT


def test_exports_are_complete() -> None:
    public = {cls.__name__ for cls in CLASSES} | {"Code", "ErrorCode", "Outcome"}
    assert public | {"broker_error", "error_code"} == set(errors.__all__)
