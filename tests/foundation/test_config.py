from __future__ import annotations

import copy
import dataclasses
import logging
import pickle
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiokprod._config.fields import LEVELS, DefaultInt, parse_address
from aiokprod._wire.compression import CODEC_NAMES
from aiokprod.config import ProducerConfig
from aiokprod.errors import ConfigError, Outcome

INT32 = 2**31 - 1
INT64 = 2**63 - 1


def config(**settings: Any) -> ProducerConfig:
    return ProducerConfig(**{"bootstrap_servers": "broker:9092", **settings})


# The default, the smallest and the largest accepted value of every numeric setting.
RANGES = {
    "retries": (INT32, 0, INT32),
    "max_in_flight_requests_per_connection": (5, 1, INT32),
    "delivery_timeout_ms": (120_000, 0, INT32),
    "request_timeout_ms": (30_000, 1, INT32),
    "linger_ms": (5, 0, INT32),
    "batch_size": (131_072, 0, INT32),
    "elastic_batch_size": (0, 0, INT32),
    "buffer_memory": (33_554_432, 1, INT64),
    "max_block_ms": (60_000, 0, INT64),
    "close_timeout_ms": (20_000, -1, INT64),
    "max_request_size": (1_048_576, 1, INT32),
    "compression_gzip_level": (-1, -1, 9),
    "compression_lz4_level": (9, 1, 17),
    "compression_zstd_level": (3, -131_072, 22),
    "partitioner_availability_timeout_ms": (0, 0, INT64),
    "transaction_timeout_ms": (60_000, 1, INT32),
    "metadata_max_age_ms": (300_000, 0, INT64),
    "metadata_max_idle_ms": (300_000, 5_000, INT64),
    "metadata_recovery_rebootstrap_trigger_ms": (300_000, 0, INT64),
    "retry_backoff_ms": (100, 0, INT64),
    "retry_backoff_max_ms": (1_000, 0, INT64),
    "reconnect_backoff_ms": (50, 0, INT64),
    "reconnect_backoff_max_ms": (1_000, 0, INT64),
    "socket_connection_setup_timeout_ms": (10_000, 1, INT64),
    "socket_connection_setup_timeout_max_ms": (30_000, 1, INT64),
    "connections_max_idle_ms": (540_000, -1, INT64),
    "send_buffer_bytes": (131_072, -1, INT32),
    "receive_buffer_bytes": (32_768, -1, INT32),
    "receive_max_bytes": (16_777_216, 1_024, INT32),
}

FLAGS = {
    "adaptive_linger": True,
    "partitioner_adaptive_partitioning_enable": True,
    "partitioner_ignore_keys": False,
    "allow_auto_create_topics": True,
    "enable_metrics_push": True,
    "sasl_delegation_token": False,
    "sasl_allow_cleartext": False,
}

CHOICES = {
    "compression_type": ("none", list(CODEC_NAMES)),
    "metadata_recovery_strategy": ("rebootstrap", ["rebootstrap", "none"]),
    "client_dns_lookup": ("use_all_dns_ips", ["use_all_dns_ips"]),
    "security_protocol": ("PLAINTEXT", ["PLAINTEXT", "SSL"]),
}

OTHERS = {
    "bootstrap_servers": ("broker:9092",),
    "client_id": None,
    "acks": "all",
    "enable_idempotence": None,
    "topic_profiles": (),
    "transactional_id": None,
    "ssl_context": None,
    "ssl_endpoint_identification_algorithm": "https",
    "ssl_truststore_location": None,
    "ssl_truststore_certificates": None,
    "ssl_crl_location": None,
    "ssl_keystore_location": None,
    "ssl_keystore_certificate_chain": None,
    "ssl_keystore_key": None,
    "ssl_key_location": None,
    "ssl_key_password": None,
    "sasl_mechanism": None,
    "sasl_username": None,
    "sasl_password": None,
    "sasl_credentials": None,
    "sasl_token_provider": None,
    "sasl_kerberos_service_name": "kafka",
    "sasl_kerberos_principal": None,
    "sasl_kerberos_keytab": None,
}

# Other settings that a boundary value requires.
COMPANIONS: dict[tuple[str, int], dict[str, Any]] = {
    ("max_in_flight_requests_per_connection", INT32): {"enable_idempotence": False},
    ("delivery_timeout_ms", 0): {"linger_ms": 0, "request_timeout_ms": 1},
}


def test_every_setting_is_covered_by_these_tests() -> None:
    names = {setting.name for setting in dataclasses.fields(ProducerConfig)}
    assert names == {*RANGES, *FLAGS, *CHOICES, *OTHERS}


@pytest.mark.parametrize(
    ("name", "default"),
    [
        *((name, row[0]) for name, row in RANGES.items()),
        *FLAGS.items(),
        *((name, row[0]) for name, row in CHOICES.items()),
        *OTHERS.items(),
    ],
)
def test_setting_has_its_default(name: str, default: object) -> None:
    assert getattr(config(), name) == default
    assert type(config().effective()[name]) is type(default) or name == "enable_idempotence"


@pytest.mark.parametrize("name", RANGES)
def test_numeric_setting_accepts_its_bounds(name: str) -> None:
    _, low, high = RANGES[name]
    for value in (low, high):
        if (name, value) == ("delivery_timeout_ms", 0):
            value = 1
        settings = {name: value, **COMPANIONS.get((name, low if value != high else high), {})}
        assert getattr(config(**settings), name) == value
        text = {name.replace("_", "."): f" {value} "}
        others = {key: other for key, other in settings.items() if key != name}
        parsed = ProducerConfig.from_mapping({"bootstrap.servers": "b:1", **text, **others})
        assert getattr(parsed, name) == value


@pytest.mark.parametrize("name", RANGES)
def test_numeric_setting_refuses_what_is_outside_or_no_int(name: str) -> None:
    _, low, high = RANGES[name]
    for value in (low - 1, high + 1, -(2**70), True, 1.5, "5", None, [1]):
        with pytest.raises(ConfigError, match=f"{name}=") as caught:
            config(**{name: value})
        assert caught.value.outcome is Outcome.NOT_SENT
        assert "use an int of" in str(caught.value)
    for text in ("", "ten", "1.5", "0x10"):
        with pytest.raises(ConfigError, match=name):
            ProducerConfig.from_mapping({"bootstrap.servers": "b:1", name: text})


def test_every_codec_with_levels_has_a_setting_for_them() -> None:
    """`EffectiveSettings.of` and the compatibility layers derive the name of the setting from the
    codec."""
    fields = [field.name for field in dataclasses.fields(ProducerConfig)]
    found = [name for name in fields if name.startswith("compression_") and name.endswith("_level")]
    assert found == [f"compression_{codec}_level" for codec in LEVELS]
    with pytest.raises(ConfigError) as raised:
        ProducerConfig.from_mapping({"compression.level": "1"})
    for codec in LEVELS:
        assert re.search(rf"_{codec}_level\b", str(raised.value))


def test_gzip_level_refuses_zero_between_default_and_range() -> None:
    with pytest.raises(ConfigError, match="1 to 9 or -1"):
        config(compression_gzip_level=0)


@pytest.mark.parametrize("name", [*FLAGS, "enable_idempotence"])
def test_flag_accepts_bools_only(name: str) -> None:
    for value in (True, False):
        assert getattr(config(**{name: value}), name) is value
        for text in (str(value), f" {str(value).upper()} "):
            parsed = ProducerConfig.from_mapping({"bootstrap.servers": "b:1", name: text})
            assert getattr(parsed, name) is value
    for wrong in (0, 1, "true", *([None] if name in FLAGS else [])):
        with pytest.raises(ConfigError, match="use True or False"):
            config(**{name: wrong})
    with pytest.raises(ConfigError, match="true or false"):
        ProducerConfig.from_mapping({"bootstrap.servers": "b:1", name: "yes"})


@pytest.mark.parametrize("name", CHOICES)
def test_choice_accepts_its_names_only(name: str) -> None:
    for value in CHOICES[name][1]:
        assert getattr(config(**{name: value}), name) == value
        text = {"bootstrap.servers": "b:1", name.replace("_", "."): f" {value} "}
        assert getattr(ProducerConfig.from_mapping(text), name) == value
    for wrong in ("", "other", None, 1):
        with pytest.raises(ConfigError, match=f"{name}="):
            config(**{name: wrong})


def test_dns_lookup_of_canonical_names_is_not_in_this_version() -> None:
    with pytest.raises(ConfigError, match="not in this version yet"):
        config(client_dns_lookup="resolve_canonical_bootstrap_servers_only")


@pytest.mark.parametrize(
    ("given", "stored", "on_the_wire"),
    [
        ("all", "all", -1),
        ("-1", "all", -1),
        (-1, "all", -1),
        (0, 0, 0),
        ("0", 0, 0),
        (1, 1, 1),
        ("1", 1, 1),
    ],
)
def test_acks_are_normalised(given: object, stored: object, on_the_wire: int) -> None:
    made = config(acks=given)
    assert made.acks == stored
    assert made.required_acks == on_the_wire
    if isinstance(given, str):
        text = {"bootstrap.servers": "b:1", "acks": f" {given} "}
        assert ProducerConfig.from_mapping(text).acks == stored


@pytest.mark.parametrize("wrong", [2, -2, True, False, "ALL", "", None, 1.0])
def test_acks_refuse_everything_else(wrong: object) -> None:
    with pytest.raises(ConfigError, match='use 0, 1 or "all"'):
        config(acks=wrong)


@pytest.mark.parametrize("name", ["client_id", "transactional_id"])
def test_text_setting_refuses_what_cannot_travel(name: str) -> None:
    assert getattr(config(**{name: "ä" * 16383}), name) == "ä" * 16383
    for wrong, mend in [
        (7, "use a str"),
        (b"x", "use a str"),
        ("a\nb", "control characters"),
        ("a\rb", "control characters"),
        ("a\0b", "control characters"),
        ("a\x7fb", "control characters"),
        ("ä" * 16384, "32768 bytes"),
        ("\ud800", "UTF-8"),
    ]:
        with pytest.raises(ConfigError, match=mend):
            config(**{name: wrong})


def test_client_id_empty_means_generated_as_in_java() -> None:
    assert config(client_id="").client_id is None
    assert ProducerConfig.from_mapping({"bootstrap.servers": "b:1", "client.id": ""}).client_id is (
        None
    )


def test_transactional_id_empty_is_refused() -> None:
    with pytest.raises(ConfigError, match="must not be empty"):
        config(transactional_id="")


# -- bootstrap servers -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "addresses"),
    [
        ("a:1", [("a", 1)]),
        (" a:1 , b:2,,a:1 ", [("a", 1), ("b", 2)]),
        (["a:1", "b:65535"], [("a", 1), ("b", 65535)]),
        (("a:1",), [("a", 1)]),
        ("[::1]:9092,[fe80::1%eth0]:9093", [("::1", 9092), ("fe80::1%eth0", 9093)]),
        ("PLAINTEXT://a.example-1.org:9092", [("a.example-1.org", 9092)]),
        ("10.0.0.1:09092", [("10.0.0.1", 9092)]),
    ],
)
def test_bootstrap_servers_are_parsed(given: Any, addresses: list[tuple[str, int]]) -> None:
    made = config(bootstrap_servers=given)
    assert list(made.bootstrap_addresses()) == addresses
    assert isinstance(made.bootstrap_servers, tuple)


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        " , ",
        [],
        None,
        9092,
        b"a:1",
        {"a:1": 1},
        [("a", 1)],
        "a",
        "a:",
        ":9092",
        "a:0",
        "a:65536",
        "a:99999999999999999999",
        "a:-1",
        "a:\uff19",
        "a:1x",
        "::1:9092",
        "a b:1",
        "a/b:1",
        "http://a:1/",
        "[]:1",
        "a\x01:1",
    ],
)
def test_bootstrap_servers_refuse_what_is_no_address(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="bootstrap_servers="):
        config(bootstrap_servers=wrong)


def test_bootstrap_servers_text_of_an_error_is_bounded() -> None:
    with pytest.raises(ConfigError) as caught:
        config(bootstrap_servers="x" * 100_000)
    assert len(str(caught.value)) < 300


@given(st.text(max_size=30))
def test_address_parser_raises_nothing_else(text: str) -> None:
    try:
        host, port = parse_address("bootstrap_servers", text)
    except ConfigError:
        return
    assert host
    assert 1 <= port <= 65535


# -- conflicts ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"retries": 0}, "retries=0"),
        ({"acks": 1}, "acks=1"),
        ({"acks": 0}, "acks=0"),
        ({"acks": 0, "retries": 0}, "retries=0 and acks=0"),
    ],
)
def test_idempotence_by_default_yields_to_a_conflict_with_a_warning(
    settings: dict[str, Any], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        made = config(**settings)
    assert made.idempotent is False
    assert made.effective()["enable_idempotence"] is False
    assert caplog.messages == [f"idempotence is off because of {reason}"]
    with pytest.raises(ConfigError, match=f"enable_idempotence=True excludes {reason}"):
        config(enable_idempotence=True, **settings)
    caplog.clear()
    assert config(enable_idempotence=False, **settings).idempotent is False
    assert not caplog.messages


def test_idempotence_is_on_by_default() -> None:
    assert config().idempotent is True
    assert config().effective()["enable_idempotence"] is True
    assert config(enable_idempotence=True).idempotent is True


def test_in_flight_above_five_with_idempotence_is_an_error() -> None:
    explicit: list[dict[str, Any]] = [{}, {"enable_idempotence": True}]
    for settings in explicit:
        with pytest.raises(ConfigError, match="at most 5 with idempotence"):
            config(max_in_flight_requests_per_connection=6, **settings)
    without: list[dict[str, Any]] = [{"enable_idempotence": False}, {"acks": 1}]
    for settings in without:
        made = config(max_in_flight_requests_per_connection=6, **settings)
        assert made.max_in_flight_requests_per_connection == 6


@pytest.mark.parametrize("settings", [{"enable_idempotence": False}, {"acks": 1}, {"retries": 0}])
def test_transactional_id_without_idempotence_is_an_error(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="transactional_id='t' needs idempotence"):
        config(transactional_id="t", **settings)
    assert config(transactional_id="t").idempotent


def test_elastic_batch_size_by_default_is_for_transactions() -> None:
    assert config().elastic_batch_size == 0
    transactional = config(transactional_id="t", batch_size=1000)
    assert transactional.elastic_batch_size == 8000
    assert config(transactional_id="t").elastic_batch_size == 1_048_576
    assert config(transactional_id="t", max_request_size=9).elastic_batch_size == 9
    assert config(transactional_id="t", elastic_batch_size=0).elastic_batch_size == 0
    assert config(transactional_id="t", elastic_batch_size=5).elastic_batch_size == 5
    plain = dataclasses.replace(transactional, transactional_id=None)
    assert plain.elastic_batch_size == 0
    assert plain.effective()["elastic_batch_size"] == 0


def test_delivery_timeout_given_too_short_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"linger_ms \+ request_timeout_ms = 30005"):
        config(delivery_timeout_ms=30_004)
    assert config(delivery_timeout_ms=30_005).delivery_timeout_ms == 30_005
    with pytest.raises(ConfigError):
        config(delivery_timeout_ms=120_000, linger_ms=90_001)


def test_delivery_timeout_by_default_is_raised_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        made = config(request_timeout_ms=200_000)
    assert made.delivery_timeout_ms == 200_005
    assert "delivery_timeout_ms is raised" in caplog.text
    # The value is still a default, so a changed copy may raise it again.
    again = dataclasses.replace(made, request_timeout_ms=300_000)
    assert again.delivery_timeout_ms == 300_005


@pytest.mark.parametrize(
    ("low", "high"),
    [
        ("retry_backoff_ms", "retry_backoff_max_ms"),
        ("reconnect_backoff_ms", "reconnect_backoff_max_ms"),
        ("socket_connection_setup_timeout_ms", "socket_connection_setup_timeout_max_ms"),
    ],
)
def test_backoff_above_its_maximum_is_warned_about(
    low: str, high: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        config(**{low: 40_001, high: 40_000})
    assert caplog.messages == [
        f"{low}=40001 is more than {high}=40000, which therefore applies from the first attempt"
    ]


# -- a value -----------------------------------------------------------------------------------


def test_config_is_a_frozen_picklable_hashable_value() -> None:
    made = config(linger_ms=7, acks="all", client_id="x")
    for again in (pickle.loads(pickle.dumps(made)), copy.deepcopy(made), copy.copy(made)):
        assert again == made
        assert hash(again) == hash(made)
        assert isinstance(again.delivery_timeout_ms, DefaultInt)
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.linger_ms = 8  # type: ignore[misc]
    with pytest.raises(TypeError):
        ProducerConfig("broker:9092")  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        ProducerConfig()


def test_effective_lists_every_setting() -> None:
    names = [setting.name for setting in dataclasses.fields(ProducerConfig)]
    effective = config(linger_ms=9).effective()
    assert list(effective) == names
    assert effective["linger_ms"] == 9
    assert type(effective["delivery_timeout_ms"]) is int


# -- mappings ----------------------------------------------------------------------------------


def test_from_mapping_takes_java_and_our_names_and_plain_values() -> None:
    made = ProducerConfig.from_mapping(
        {
            "bootstrap.servers": "a:1,b:2",
            "linger.ms": "7",
            "batch_size": 10,
            "enable.idempotence": "false",
            "compression.type": "lz4",
            "acks": 1,
            "client.id": None,
            "enable.metrics.push": "false",
        }
    )
    assert made == ProducerConfig(
        bootstrap_servers=["a:1", "b:2"],
        linger_ms=7,
        batch_size=10,
        enable_idempotence=False,
        compression_type="lz4",
        acks=1,
        enable_metrics_push=False,
    )


def test_from_mapping_takes_what_java_takes_in_any_case() -> None:
    read = ProducerConfig.from_mapping(
        {
            "bootstrap.servers": "a:1",
            "security.protocol": "ssl",
            "metadata.recovery.strategy": "REBOOTSTRAP",
        }
    )
    assert read.security_protocol == "SSL"
    assert read.metadata_recovery_strategy == "rebootstrap"


@pytest.mark.parametrize(
    ("key", "text"), [("compression.type", "GZIP"), ("security.protocol", "tls")]
)
def test_from_mapping_refuses_what_java_refuses(key: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        ProducerConfig.from_mapping({"bootstrap.servers": "a:1", key: text})


def test_from_mapping_without_servers_says_so() -> None:
    with pytest.raises(ConfigError, match="bootstrap_servers is missing"):
        ProducerConfig.from_mapping({})


def test_from_mapping_refuses_both_spellings_of_a_key() -> None:
    with pytest.raises(ConfigError, match="given twice"):
        ProducerConfig.from_mapping({"linger.ms": 1, "linger_ms": 1})


def test_from_mapping_refuses_keys_that_are_no_strings() -> None:
    with pytest.raises(ConfigError, match="must be a str"):
        ProducerConfig.from_mapping({1: 2})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("linger.mss", "linger.ms"),
        ("lingerms", "linger.ms"),
        ("bootstrap_server", "bootstrap_servers"),
        ("max.inflight.requests.per.connection", "max.in.flight.requests.per.connection"),
        ("Retries_", "retries"),
    ],
)
def test_from_mapping_unknown_key_names_the_nearest(key: str, near: str) -> None:
    with pytest.raises(ConfigError, match=f"did you mean '{near}'"):
        ProducerConfig.from_mapping({key: "1"})


def test_from_mapping_unknown_key_without_neighbour_says_so() -> None:
    with pytest.raises(ConfigError, match="no setting has a similar name"):
        ProducerConfig.from_mapping({"xyzzy": "1"})


@pytest.mark.parametrize(
    ("key", "replacement"),
    [
        ("key.serializer", "key_serializer="),
        ("value.serializer", "value_serializer="),
        ("partitioner.class", "partitioner="),
        ("interceptor.classes", "interceptors="),
        ("ssl.truststore.type", "PEM"),
        ("ssl.keystore.password", "PEM"),
        ("ssl.protocol", "TLS 1.2 or newer"),
        ("ssl_cafile", "use ssl_truststore_location"),
        ("sasl.jaas.config", "not JAAS"),
        ("sasl_plain_username", "use sasl_username"),
        ("sasl.oauthbearer.token.endpoint.url", "use sasl_token_provider (OidcTokens(...)"),
        ("sasl.kerberos.kinit.cmd", "not kinit"),
        ("metric.reporters", "metrics()"),
        ("security.providers", "JVM"),
        ("min.insync.replicas", "broker or topic setting"),
        ("auto.create.topics.enable", "allow_auto_create_topics"),
        ("log.retention.ms", "broker or topic setting"),
        ("group.id", "consumer setting"),
        ("max_batch_size", "use batch_size"),
        ("queue.buffering.max.ms", "use linger_ms"),
        ("message.timeout.ms", "use delivery_timeout_ms"),
        ("transaction.two.phase.commit.enable", "not in this version"),
    ],
)
def test_from_mapping_key_without_meaning_names_the_replacement(key: str, replacement: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ProducerConfig.from_mapping({"bootstrap.servers": "b:1", key: "secret-value"})
    assert replacement in str(caught.value)
    assert "secret-value" not in str(caught.value)


@given(
    st.dictionaries(
        st.one_of(
            st.sampled_from([setting.name for setting in dataclasses.fields(ProducerConfig)]),
            st.text(max_size=12),
        ),
        st.one_of(st.integers(), st.text(max_size=8), st.booleans(), st.none(), st.floats()),
        max_size=6,
    )
)
def test_from_mapping_raises_nothing_but_config_errors(mapping: dict[str, object]) -> None:
    try:
        made = ProducerConfig.from_mapping({"bootstrap_servers": "b:1", **mapping})
    except ConfigError:
        return
    assert made.delivery_timeout_ms >= made.linger_ms + made.request_timeout_ms
