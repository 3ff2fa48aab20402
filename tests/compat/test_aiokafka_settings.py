"""Arguments of aiokafka's producer as settings of aiokprod."""

from __future__ import annotations

import inspect
import ssl
from typing import Any

import aiokafka
import pytest
from aiokafka.producer.producer import _missing

from aiokprod._compat.aiokafka_settings import DIFFERENCES, UNSET, bootstrap_servers, translate
from aiokprod.compat.aiokafka import AIOKafkaProducer
from aiokprod.config import ProducerConfig
from aiokprod.errors import ConfigError
from aiokprod.security import Secret


def settings(defaults: str = "aiokprod", **given: Any) -> dict[str, Any]:
    translated = translate(given, defaults).settings
    ProducerConfig(**translated)  # aiokprod accepts the settings
    return translated


def test_every_argument_of_aiokafka_is_an_argument() -> None:
    theirs = inspect.signature(aiokafka.AIOKafkaProducer.__init__).parameters
    ours = inspect.signature(AIOKafkaProducer.__init__).parameters
    assert set(theirs) <= set(ours)
    assert all(ours[name].kind is parameter.kind for name, parameter in theirs.items())


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("localhost", ["localhost:9092"]),
        ("a:1,b", ["a:1", "b:9092"]),
        (["a", " b:2 "], ["a:9092", "b:2"]),
        (["a:1,b:2"], ["a:1", "b:2"]),  # as FastStream passes a string
        ("[::1]", ["[::1]:9092"]),
        ("[::1]:7", ["[::1]:7"]),
        ("::1", ["[::1]:9092"]),
        ("", []),
    ],
)
def test_bootstrap_servers_get_the_default_port(given: Any, expected: list[str]) -> None:
    assert bootstrap_servers(given) == expected


@pytest.mark.parametrize("given", [9092, [9092], None])
def test_bootstrap_servers_of_another_type_are_rejected(given: Any) -> None:
    with pytest.raises(ConfigError, match=r"bootstrap_servers must be .*host:port"):
        bootstrap_servers(given)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {}),
        ({"acks": -1}, {"acks": "all"}),
        ({"acks": 1}, {"acks": 1}),
        ({"acks": _missing}, {}),  # FastStream passes this value
        ({"enable_idempotence": False}, {"enable_idempotence": False}),
        (
            {"transactional_id": "t", "enable_idempotence": False},
            {"transactional_id": "t", "enable_idempotence": True},
        ),
        ({"compression_type": "zstd"}, {"compression_type": "zstd"}),
        ({"max_batch_size": 5_000}, {"batch_size": 5_000}),
        (
            {"request_timeout_ms": 1_000},
            {"request_timeout_ms": 1_000, "delivery_timeout_ms": 2_000, "max_block_ms": 1_000},
        ),
        (
            {"request_timeout_ms": 100, "linger_ms": 900},
            {
                "request_timeout_ms": 100,
                "linger_ms": 900,
                "delivery_timeout_ms": 1_000,
                "max_block_ms": 100,
            },
        ),
        (
            {"request_timeout_ms": 100, "delivery_timeout_ms": 9_000},
            {"request_timeout_ms": 100, "delivery_timeout_ms": 9_000, "max_block_ms": 100},
        ),
        ({"retry_backoff_ms": 70}, {"retry_backoff_ms": 70, "retry_backoff_max_ms": 70}),
        ({"connections_max_idle_ms": None}, {"connections_max_idle_ms": -1}),
        (
            {"client_id": "c", "metadata_max_age_ms": 7},
            {"client_id": "c", "metadata_max_age_ms": 7},
        ),
        ({"buffer_memory": 1_000_000}, {"buffer_memory": 1_000_000}),
        ({"sasl_plain_username": "u"}, {}),  # ignored without SASL, as in aiokafka
    ],
)
def test_arguments_become_settings(given: dict[str, Any], expected: dict[str, Any]) -> None:
    found = settings(**given)
    assert found.pop("bootstrap_servers") == ["localhost:9092"]
    assert found.pop("security_protocol") == "PLAINTEXT"
    assert found == expected


def test_sasl_arguments_become_settings() -> None:
    context = ssl.create_default_context()
    found = settings(
        security_protocol="SASL_SSL",
        ssl_context=context,
        sasl_mechanism="SCRAM-SHA-512",
        sasl_plain_username="u",
        sasl_plain_password=Secret("p"),
        sasl_kerberos_service_name="kafka",
    )
    assert found["ssl_context"] is context
    assert found["sasl_mechanism"] == "SCRAM-SHA-512"
    assert found["sasl_username"] == "u"
    assert "sasl_kerberos_service_name" not in found


def test_passwords_may_be_sent_in_clear_text_as_in_aiokafka() -> None:
    found = settings(
        security_protocol="SASL_PLAINTEXT", sasl_plain_username="u", sasl_plain_password="p"
    )
    assert (found["sasl_mechanism"], found["sasl_allow_cleartext"]) == ("PLAIN", True)
    given = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "OAUTHBEARER"}
    assert translate(given, "aiokprod").settings["sasl_allow_cleartext"] is True
    refused = translate({**given, "sasl_allow_cleartext": False}, "aiokprod").settings
    assert refused["sasl_allow_cleartext"] is False


def test_the_kerberos_service_is_kept_for_gssapi() -> None:
    given = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "GSSAPI",
        "sasl_kerberos_service_name": "broker",
    }
    assert translate(given, "aiokprod").settings["sasl_kerberos_service_name"] == "broker"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"acks": 122}, r"Invalid ACKS parameter: acks=122"),
        ({"acks": True}, r"Invalid ACKS parameter: acks=True"),
        ({"acks": 1, "enable_idempotence": True}, r"acks=1 not supported if enable_idempotence"),
        ({"acks": 0, "transactional_id": "t"}, r"acks=0 not supported if enable_idempotence"),
        ({"compression_type": "brotli"}, r"Invalid compression type! compression_type='brotli'"),
        ({"security_protocol": "TLS"}, r"`security_protocol` should be SSL or PLAINTEXT.*'TLS'"),
        ({"security_protocol": "SSL"}, r"`ssl_context` is mandatory if security_protocol=='SSL'"),
        ({"request_timeout_ms": 0}, r"request_timeout_ms=0: must be at least 1"),
        ({"request_timeout_ms": 1.5}, r"request_timeout_ms=1.5: must be at least 1"),
        ({"sasl_kerberos_domain_name": "d"}, r"sasl_kerberos_domain_name is not supported"),
        ({"max_batch_size": 1, "batch_size": 2}, r"batch_size is given twice"),
    ],
)
def test_what_cannot_be_honoured_is_a_value_error(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        translate(given, "aiokprod")
    assert isinstance(caught.value, ConfigError)


def test_unknown_defaults_are_rejected() -> None:
    with pytest.raises(ConfigError, match=r'defaults=.java.: choose "aiokprod" or "aiokafka"'):
        translate({}, "java")


def test_defaults_of_aiokafka_are_restored() -> None:
    found = settings("aiokafka")
    assert found["acks"] == 1
    assert found["enable_idempotence"] is False
    assert found["batch_size"] == 16_384
    assert found["linger_ms"] == 0
    assert found["max_block_ms"] == found["request_timeout_ms"] == 40_000
    assert found["retry_backoff_max_ms"] == 100
    assert translate({}, "aiokafka").differences == ()


@pytest.mark.parametrize("given", [{"enable_idempotence": True}, {"transactional_id": "t"}])
def test_defaults_of_aiokafka_with_idempotence(given: dict[str, Any]) -> None:
    found = settings("aiokafka", **given)
    assert (found["acks"], found["enable_idempotence"]) == ("all", True)


def test_differences_name_the_arguments_that_were_not_given() -> None:
    assert translate({}, "aiokprod").differences == tuple(DIFFERENCES.values())
    given = {"acks": 1, "linger_ms": 0, "retry_backoff_ms": 100, "request_timeout_ms": UNSET}
    left = translate(given, "aiokprod").differences
    assert left == tuple(
        DIFFERENCES[name] for name in ("enable_idempotence", "max_batch_size", "request_timeout_ms")
    )
    transactional = translate({"transactional_id": "t"}, "aiokprod").differences
    assert not any(text.startswith(("acks", "enable_idempotence")) for text in transactional)


def test_the_limit_of_a_batch_is_the_batch_size() -> None:
    assert translate({}, "aiokprod").batch_size == 131_072
    assert translate({"max_batch_size": 9}, "aiokprod").batch_size == 9
