"""Options: names, checks, exact texts of errors, and values that are never shown."""

from __future__ import annotations

import importlib.util
import pickle
import traceback
from collections.abc import Generator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import types as t

from aiokprod import ConfigError
from aiokprod.spark.audit_reader import AuditOptions, AuditRange
from aiokprod.spark.context import Task, audit_prefix
from aiokprod.spark.options import EXACTLY_ONCE, SealedOptions, SinkOptions, in_options
from aiokprod.spark.source import AiokprodAuditSource, AiokprodDataSource
from aiokprod.spark.traceback_redaction import redacted
from aiokprod.spark.transactional_task import _Run

SCHEMA = t.StructType([t.StructField("value", t.BinaryType())])
SERVERS = {"kafka.bootstrap.servers": "b:9092"}


def parse(**options: str) -> SinkOptions:
    return SinkOptions.parse(SERVERS | {key.replace("__", "."): v for key, v in options.items()})


def test_options_of_a_plain_write() -> None:
    options = parse(Topic="t ", kafka__linger__ms="7", CHECKPOINTLOCATION="c", includeHeaders="x")
    assert options.topic == "t"
    assert options.delivery == "at_least_once"
    config = options.producer_config()
    assert config.linger_ms == 7
    assert config.buffer_memory == 32 * 1024 * 1024
    assert config.idempotent


def test_batches_are_large_unless_told_otherwise_and_fit_into_the_buffer() -> None:
    assert parse().producer_config().batch_size == 512 * 1024
    assert parse(maxBufferedBytes="1048576").producer_config().batch_size == 128 * 1024
    assert parse(kafka__batch__size="77").producer_config().batch_size == 77
    assert parse(kafka__batch_size="77").producer_config().batch_size == 77


def test_kafka_options_of_either_spelling_are_the_same() -> None:
    with pytest.raises(ConfigError, match=r"option 'kafka\.transactional\.id' is refused"):
        parse(kafka__transactional_id="mine")
    with pytest.raises(ConfigError, match=r"option 'kafka\.buffer\.memory' is refused"):
        parse(kafka__buffer_memory="1000000")
    with pytest.raises(ConfigError, match=r"option 'kafka\.linger\.ms' is given twice"):
        parse(kafka__linger_ms="1", kafka__linger__ms="2")
    given = parse(kafka__security_protocol="SASL_PLAINTEXT", kafka__sasl_allow_cleartext="true",
                  kafka__sasl__mechanism="PLAIN", kafka__sasl__username="u",
                  kafka__sasl_password="p")  # fmt: skip
    assert given.producer_config().sasl_allow_cleartext
    for name in ("kafka.ssl.keystore.key", "kafka.ssl_keystore_key", "KAFKA.SASL_PASSWORD"):
        assert "canary-pem" not in repr(SealedOptions({name: "canary-pem"}))


def test_options_are_case_insensitive() -> None:
    upper = SinkOptions.parse({"KAFKA.BOOTSTRAP.SERVERS": "b:9092", "TOPIC": "t",
                               "MAXBUFFEREDBYTES": "1048576"})  # fmt: skip
    assert upper.topic == "t"
    assert upper.producer_config().buffer_memory == 1048576


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        (
            "kafka.key.serializer",
            "x",
            "option 'kafka.key.serializer' is refused: keys are the bytes of the key column: "
            "serialise them in the query",
        ),
        (
            "kafka.value.serializer",
            "x",
            "option 'kafka.value.serializer' is refused: values are the bytes of the value column: "
            "serialise them in the query",
        ),
        (
            "kafka.partitioner.class",
            "x",
            "option 'kafka.partitioner.class' is refused: class names are not loaded: fill a "
            "partition column, or leave it to the built-in partitioner (Java's murmur2)",
        ),
        (
            "kafka.interceptor.classes",
            "x",
            "option 'kafka.interceptor.classes' is refused: class names are not loaded: do it in "
            "the query",
        ),
        (
            "kafka.transactional.id",
            "x",
            "option 'kafka.transactional.id' is refused: each task needs a unique id: use "
            "transactionalIdPrefix with delivery=transactional or exactly_once",
        ),
        (
            "kafka.group.id",
            "x",
            "option 'kafka.group.id' is refused: it is a consumer setting: leave it out",
        ),
        (
            "kafka.buffer.memory",
            "1",
            "option 'kafka.buffer.memory' is refused: use maxBufferedBytes",
        ),
        (
            "path",
            "/x",
            "option 'path' is refused: this sink writes to Kafka topics: use .save() without a "
            "path, and .option('topic', ...)",
        ),
        (
            "kafka.linger.sm",
            "5",
            "option 'kafka.linger.sm' is not a setting; did you mean 'kafka.linger.ms'?",
        ),
        (
            "kafka.linger.ms",
            "soon",
            "option 'kafka.linger.ms'='soon': use a decimal integer",
        ),
        (
            "linger.ms",
            "5",
            "option 'linger.ms' is not one of the sink: did you mean 'kafka.linger.ms'?",
        ),
        ("topics", "t", "option 'topics' is not one of the sink: did you mean 'topic'?"),
        ("delivry", "x", "option 'delivry' is not one of the sink: did you mean 'delivery'?"),
        (
            "delivery",
            "maybe",
            "option 'delivery' is 'maybe': use at_least_once or transactional or exactly_once",
        ),
        ("unknownColumns", "drop", "option 'unknownColumns' is 'drop': use error or ignore"),
        ("loop", "twisted", "option 'loop' is 'twisted': use auto or asyncio or uvloop"),
        ("preflight", "1", "option 'preflight' is '1': use true or false"),
        (
            "maxBufferedBytes",
            "1k",
            "option 'maxBufferedBytes' is '1k': use a whole number of 1048576 or more",
        ),
        ("batchId", "-1", "option 'batchId' is '-1': use a whole number of 0 or more"),
        (
            "delivery",
            "exactly_once",
            "delivery=exactly_once needs the option transactionalIdPrefix: a name of this query, "
            "the same after a restart and used by nothing else",
        ),
        (
            "transactionalIdPrefix",
            "p",
            "transactionalIdPrefix has no meaning with delivery=at_least_once: leave it out, or "
            "set delivery to transactional (batch) or exactly_once (stream)",
        ),
        ("transactionalIdPrefix", " ", "option 'transactionalIdPrefix' must not be empty"),
    ],
)
def test_option_wrong_is_refused_with_its_text(name: str, value: str, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SinkOptions.parse(SERVERS | {name: value})
    assert str(caught.value) == text


def test_option_servers_missing() -> None:
    with pytest.raises(ConfigError) as caught:
        SinkOptions.parse({"topic": "t"})
    assert str(caught.value) == (
        "option 'kafka.bootstrap.servers' is missing: name at least one \"host:port\""
    )


def test_option_topic_illegal_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^option 'topic': "):
        parse(topic="a b")


def test_transactions_exclude_acks() -> None:
    with pytest.raises(ConfigError, match=r"needs kafka.acks=all and idempotence"):
        parse(delivery="exactly_once", transactionalIdPrefix="p", kafka__acks="1",
              kafka__enable__idempotence="false")  # fmt: skip


def test_fewer_acks_need_idempotence_off_on_purpose() -> None:
    with pytest.raises(ConfigError) as caught:
        parse(kafka__acks="1")
    assert str(caught.value) == (
        "option 'kafka.acks' is 1, which turns idempotence off: rows can be lost and doubled. Use "
        "kafka.acks=all; or set kafka.enable.idempotence=false too, if that is wanted"
    )
    assert (
        not parse(kafka__acks="1", kafka__enable__idempotence="false").producer_config().idempotent
    )


def test_transactions_have_the_brokers_timeout() -> None:
    options = parse(delivery="transactional", transactionalIdPrefix="p")
    assert options.producer_config().transaction_timeout_ms == 900_000


def test_sealed_options_are_a_mapping_of_lower_case_names() -> None:
    sealed = SealedOptions({"Topic": "t", "kafka.linger.ms": "7"})
    assert len(sealed) == 2
    assert list(sealed) == ["topic", "kafka.linger.ms"]
    assert (sealed["TOPIC"], sealed["topic"]) == ("t", "t")
    with pytest.raises(KeyError):
        sealed["other"]


def test_sealed_options_show_no_secret_and_travel_with_all() -> None:
    values = {
        "kafka.sasl.password": "s3cret",
        "kafka.ssl.key.password": "s3cret",
        "kafka.ssl.keystore.key": "s3cret",
        "kafka.sasl.jaas.config": "s3cret",
        "Kafka.Sasl.Username": "me",
    }
    sealed = SealedOptions(values)
    assert "s3cret" not in repr(sealed)
    assert "s3cret" not in f"{sealed!s} {vars(SealedOptions)}"
    assert "me" in repr(sealed)
    assert dict(pickle.loads(pickle.dumps(sealed))) == {k.lower(): v for k, v in values.items()}


def test_refusal_of_credentials_does_not_show_them() -> None:
    with pytest.raises(ConfigError, match=r"kafka\.sasl\.mechanism.*has no effect") as caught:
        parse(kafka__sasl__password="s3cret", kafka__sasl__mechanism="PLAIN")
    assert "s3cret" not in str(caught.value)


def test_audit_options() -> None:
    options = AuditOptions.parse(
        SERVERS | {"topic": "a, b", "isolation": "read_uncommitted", "offsetsPerTask": "10"}
    )
    assert options.topics == ("a", "b")
    assert not options.committed
    assert options.offsets_per_task == 10
    assert options.config().receive_max_bytes > 64 * 1024 * 1024


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("isolation", "dirty", "option 'isolation' is 'dirty': use read_committed or"),
        ("values", "no", "option 'values' is 'no': use true or false"),
        ("delivery", "x", "option 'delivery' is not one of aiokprod-audit: use topic, isolation"),
        ("kafka.bogus", "x", "option 'kafka.bogus' is not a setting"),
    ],
)
def test_audit_option_wrong_is_refused(name: str, value: str, text: str) -> None:
    with pytest.raises(ConfigError, match=f"^{text}"):
        AuditOptions.parse(SERVERS | {"topic": "t", name: value})


def test_audit_topic_missing() -> None:
    with pytest.raises(ConfigError, match="option 'topic' is missing"):
        AuditOptions.parse(SERVERS)


PEM = "-----BEGIN PRIVATE KEY-----"


def test_secret_before_a_kafka_option_hides_it_and_changes_nothing_else() -> None:
    plain = {"kafka.linger.ms": "7", "kafka.client.id": "c"}
    hidden = {"secret.kafka.linger.ms": "7", "Secret.Kafka.client_id": "c"}
    assert SinkOptions.parse(SERVERS | hidden) == SinkOptions.parse(SERVERS | plain)
    with pytest.raises(ConfigError, match=r"option 'kafka\.linger\.ms' is given twice"):
        SinkOptions.parse(SERVERS | plain | hidden)
    with pytest.raises(ConfigError, match=r"option 'kafka\.group\.id' is refused"):
        SinkOptions.parse(SERVERS | {"secret.kafka.group.id": "g"})
    with pytest.raises(ConfigError, match=r"option 'secret\.topic'"):
        SinkOptions.parse(SERVERS | {"secret.topic": "t"})
    audit = AuditOptions.parse(SERVERS | hidden | {"topic": "t"})
    assert audit.config().linger_ms == 7


@pytest.mark.parametrize(
    "name", ["kafka.ssl.keystore.key", "Kafka.ssl_keystore_key", "kafka. ssl.keystore.key "]
)
def test_audit_and_stream_refuse_a_key_that_spark_would_show(name: str) -> None:
    given = SERVERS | {"topic": "t", name: PEM}
    stream = AiokprodDataSource(dict(given))
    for refuse in (
        lambda: AuditOptions.parse(given),
        lambda: stream.streamWriter(schema=SCHEMA, overwrite=False),
    ):
        with pytest.raises(
            ConfigError, match=r"Name it 'secret\.kafka\.ssl\.keystore\.key'"
        ) as caught:
            refuse()
        assert PEM not in str(caught.value)


def test_blanks_around_a_name_make_no_other_option_of_it() -> None:
    for name in (" kafka.transactional.id", "kafka.transactional.id ", "kafka. transactional_id"):
        with pytest.raises(ConfigError, match=r"option 'kafka\.transactional\.id' is refused"):
            SinkOptions.parse(SERVERS | {name: "mine"})
    shown = repr(SealedOptions({"kafka.ssl.keystore.key ": "canary-key"}))
    assert "canary" not in shown


def test_ids_of_batches_are_not_for_streams() -> None:
    given = SERVERS | {"topic": "t", "preflight": "false", "batchId": "3", "queryId": "q"}
    with pytest.raises(ConfigError, match="batchId and queryId are for foreach_batch"):
        AiokprodDataSource(dict(given)).streamWriter(schema=SCHEMA, overwrite=False)
    AiokprodDataSource(dict(given)).writer(SCHEMA, overwrite=False)


def test_audit_ids_differ_between_the_jobs_of_one_job_group() -> None:
    options = parse(auditHeaders="true")
    job = Task(4, 0, "host", None, None, "nightly", speculation=False)
    assert audit_prefix(options, job, "job-1") == "job-1/0/4/"
    assert audit_prefix(options, job, "job-2") == "job-2/0/4/"
    stream = Task(4, 0, "host", 7, "query", "run", speculation=False)
    assert audit_prefix(options, stream, None) == "run/7/4/"
    assert audit_prefix(options, replace(stream, run_id=None), "job-1") == "query/7/4/"
    assert audit_prefix(parse(), job, "job-1") is None


def refused_on_the_executor(monkeypatch: pytest.MonkeyPatch, reader: Any) -> str:
    """Return the text that Spark's tracebackWithLocals would print."""
    found = importlib.util.find_spec
    missing = lambda name, *rest: None if name == "gssapi" else found(name, *rest)  # noqa: E731
    monkeypatch.setattr(importlib.util, "find_spec", missing)
    with pytest.raises(ConfigError) as caught:
        list(reader.read(AuditRange("t", 0, 0, 1)))
    shown = traceback.TracebackException.from_exception(caught.value, capture_locals=True)
    return "".join(shown.format())


def test_audit_that_fails_on_an_executor_shows_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    given = SERVERS | {
        "topic": "t",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "GSSAPI",
        "kafka.sasl.kerberos.principal": "a@B",
        "kafka.ssl.keystore.location": "/x.pem",
        "secret.kafka.ssl.key.password": "canary-secret",
    }
    with monkeypatch.context() as driver:
        found = importlib.util.find_spec
        there = lambda name, *rest: object() if name == "gssapi" else found(name, *rest)  # noqa: E731
        driver.setattr(importlib.util, "find_spec", there)
        reader = AiokprodAuditSource(given).reader(t.StructType())
    assert "gssapi" in (text := refused_on_the_executor(monkeypatch, reader))
    assert "canary" not in text


def test_audit_of_another_version_is_refused() -> None:
    reader = AiokprodAuditSource(SERVERS | {"topic": "t"}).reader(t.StructType())
    reader._version = "0.0.9"
    with pytest.raises(ConfigError, match=r"0\.0\.9 on the driver"):
        next(reader.read(AuditRange("t", 0, 0, 1)))


def test_rows_for_another_topic_have_another_hash() -> None:
    once = {"delivery": EXACTLY_ONCE, "transactionalIdPrefix": "p"}
    task = Task(4, 0, "host", 7, "query", "run", speculation=False)

    def start(**topic: str) -> int:
        thread: Any = SimpleNamespace(loop=SimpleNamespace(time=lambda: 0.0))
        feed: Any = None
        return _Run(thread, parse(**once, **topic), task, feed, None)._hash

    assert start(topic="a") == start(topic="a") != start(topic="b") != start()


def test_reader_that_is_left_early_masks_nothing_of_its_caller() -> None:
    value = "canary-secret"

    def rows() -> Generator[int, None, None]:
        with redacted({"kafka.sasl.password": value}):
            yield 1

    reader = rows()
    next(reader)
    reader.close()
    assert value == "-".join(["canary", "secret"])


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("kafka.sasl.pasword", "kafka.sasl.password"),
        ("kafka.sasl.passwd", "kafka.sasl.password"),
        ("kafka.sasl_passwrd", "kafka.sasl.password"),
        ("kafka.ssl.keystore.kay", "kafka.ssl.keystore.key"),
        ("kafka.linger.mss", "kafka.linger.ms"),
        ("kafka.ssl.keystore.pass", None),
        ("kafka.sasl.jaas.config", None),
        ("kafka.nothing.like.it", None),
        ("sasl.pasword", None),
        ("pass", None),
    ],
)
def test_value_of_an_option_with_an_unknown_name_is_shown_nowhere(
    name: str, meant: str | None
) -> None:
    def value() -> str:  # not in a variable, because the values of variables are masked, too
        return "-".join(["canary", "misspelt"])

    sealed = SealedOptions(SERVERS | {"topic": "t", name: value(), "kafka.client.id": "shown"})
    assert value() not in repr(sealed)
    assert "shown" in repr(sealed)
    assert dict(sealed)[name] == value()
    for parse_options in (SinkOptions.parse, AuditOptions.parse):
        given = dict(sealed)
        with pytest.raises(ConfigError) as caught, redacted(sealed):
            parse_options(given)
        assert value() not in str(caught.value)
        told = traceback.TracebackException.from_exception(caught.value, capture_locals=True)
        assert "given = " in "".join(told.format())
        assert value() not in "".join(told.format())
        if meant is not None:
            assert f"did you mean '{meant}'" in str(caught.value)


def test_names_of_harmless_options_are_shown_with_their_values() -> None:
    given = {
        "topic": "t1", "Kafka.Linger_Ms": "7", "secret.kafka.client.id": "c1", "isolation": "i1",
        "checkpointLocation": "l1", "kafka.bootstrap.servers": "host1:9092", "queryName": "q1",
        "transactionalIdPrefix": "p1", "offsetsPerTask": "71",
    }  # fmt: skip
    shown = repr(SealedOptions(given))
    for value in given.values():
        assert repr(value) in shown


def test_user_information_in_an_address_is_shown_nowhere() -> None:
    address = "-".join(["user:canary", "address@host:9092"])
    options = {"kafka.bootstrap.servers": f"b:9092,{address}", "topic": "t"}
    assert "canary" not in repr(SealedOptions(options))
    for parse_options in (SinkOptions.parse, AuditOptions.parse):
        with pytest.raises(ConfigError, match="user information before '@'") as caught:
            parse_options(options)
        assert "canary" not in str(caught.value)
        assert "kafka.bootstrap.servers" in str(caught.value)


@pytest.mark.parametrize(
    ("module", "options"),
    [
        ("org.apache.kafka.common.security.plain.PlainLoginModule",
         "kafka.sasl.mechanism=PLAIN, kafka.sasl.username and kafka.sasl.password"),
        ("kafkashaded.org.apache.kafka.common.security.scram.ScramLoginModule",
         "kafka.sasl.mechanism=SCRAM-SHA-256 or SCRAM-SHA-512"),
        ("com.sun.security.auth.module.Krb5LoginModule", "kafka.sasl.kerberos.keytab"),
        ("software.amazon.msk.auth.iam.IAMLoginModule", "kafka.sasl.mechanism=AWS_MSK_IAM"),
        ("com.example.OwnModule", "for PLAIN and SCRAM kafka.sasl.username"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("prefix", ["kafka.", "secret.kafka.", "Kafka."])
def test_jaas_text_is_translated_to_options(module: str, options: str, prefix: str) -> None:
    word = "-".join(["canary", "jaas"])
    text = f'{module} required username="{word}" password="{word} required x";'
    with pytest.raises(ConfigError) as caught:
        SinkOptions.parse(SERVERS | {f"{prefix}sasl.jaas.config": text})
    assert options in str(caught.value)
    assert "option 'kafka.sasl.jaas.config' is refused" in str(caught.value)
    assert word not in str(caught.value)


@pytest.mark.parametrize("text", ["", "required", "PlainLoginModule", 'password="x"'])
def test_jaas_text_that_cannot_be_read_is_translated_in_general(text: str) -> None:
    with pytest.raises(ConfigError, match=r"kafka\.sasl\.mechanism, and for PLAIN and SCRAM"):
        SinkOptions.parse(SERVERS | {"kafka.sasl.jaas.config": text})


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("raise max_request_size and the topic's max.message.bytes",
         "raise kafka.max.request.size and the topic's max.message.bytes"),
        ("raise buffer_memory, or", "raise maxBufferedBytes, or"),
        ("needs sasl_username and sasl_password", "needs kafka.sasl.username and "
         "kafka.sasl.password"),
        ("security_protocol='SSL'", "kafka.security.protocol='SSL'"),
        ("topic my_batch_size, topic a.batch_size, topic 'batch_size'",
         "topic my_batch_size, topic a.batch_size, topic 'batch_size'"),
        ("acks and retries", "acks and retries"),
    ],
)  # fmt: skip
def test_messages_name_the_options_of_the_sink(message: str, told: str) -> None:
    assert in_options(message) == told


def test_refused_options_are_told_by_the_names_of_options() -> None:
    for given in (
        {"kafka.security.protocol": "SASL_SSL"},
        {"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "PLAIN"},
        {"kafka.delivery.timeout.ms": "1"},
        {"kafka.bootstrap.servers": "user:word@host:9092"},
    ):
        with pytest.raises(ConfigError) as caught:
            SinkOptions.parse(SERVERS | given)
        assert "_" not in str(caught.value).replace("SASL_SSL", "").replace("AWS_MSK_IAM", "")
