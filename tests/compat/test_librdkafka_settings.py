"""The table of librdkafka's settings: it has an entry for every setting, and the entries are
correct."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

from aiokprod._compat.librdkafka_settings import _PYTHON_KEYS, KEYS, Support, translate
from aiokprod._config.fields import LEVELS
from aiokprod._config.foreign_names import LIBRDKAFKA, dotted
from aiokprod.config import ProducerConfig
from aiokprod.errors import ConfigError
from aiokprod.partitioners import ConsistentRandomPartitioner
from aiokprod.security import OidcTokens, Secret

ROOT = Path(__file__).resolve().parent.parent.parent
NAMES = (Path(__file__).parent / "librdkafka_producer_keys.txt").read_text().split()
"""Settings of CONFIGURATION.md (librdkafka at 4c3b017), without those that only the consumer
has."""
OURS = {setting.name for setting in dataclasses.fields(ProducerConfig)}
SERVERS = {"bootstrap.servers": "b:1"}


def checked(**more: Any) -> ProducerConfig:
    given = SERVERS | {name.replace("__", "."): value for name, value in more.items()}
    return ProducerConfig.from_mapping(translate(given).settings)


def test_every_setting_of_librdkafka_has_an_entry() -> None:
    assert sorted(KEYS) == sorted(set(NAMES))


@pytest.mark.parametrize("name", KEYS)
def test_an_entry_is_complete(name: str) -> None:
    key = KEYS[name]
    if key.support is Support.SAME:
        assert name.replace(".", "_") in OURS
    elif key.support is Support.TRANSLATED:
        assert key.setting in OURS or (not key.setting and key.note)
    else:
        assert key.note
    if key.support is Support.WITHOUT_EFFECT:
        assert translate({**SERVERS, name: "1"}).without_effect == (f"{name}: {key.note}",)
    if key.support is Support.REFUSED:
        with pytest.raises(ConfigError) as raised:
            translate({**SERVERS, name: "hunter2"})
        text = str(raised.value)
        assert text.startswith(f"{name!r} is not supported: {key.note}")
        assert "leave it out" in text or "; remove it" in text
        assert all(value in text for value in key.accepted)
        for value in key.accepted:
            assert translate({**SERVERS, name: value}).settings.keys() == {"bootstrap_servers"}


DEPENDS = {"compression.level", "partitioner"}
"""Settings that are translated to one of several settings or arguments, depending on their value or
on another setting."""


@pytest.mark.parametrize("name", [*KEYS, *_PYTHON_KEYS])
def test_the_field_that_replaces_a_setting_is_the_one_of_its_entry(name: str) -> None:
    """Error messages recommend the field in `LIBRDKAFKA`. If the setting is translated to another
    field because its meaning differs slightly, the note of the entry names the recommended
    field."""
    key = {**KEYS, **_PYTHON_KEYS}[name]
    spelled = name.replace(".", "_")
    advised = LIBRDKAFKA.get(dotted(name), spelled if spelled in OURS else None)
    if name in DEPENDS:
        assert advised is None
    elif key.support is Support.SAME:
        assert advised == spelled
    elif key.support is Support.TRANSLATED:
        assert advised == key.setting
        assert advised in OURS
    elif advised is not None:
        assert re.search(rf"\b{advised}\b", key.note), f"{key.note!r} does not name {advised}"


def test_no_setting_without_a_counterpart_has_the_name_of_a_field() -> None:
    """If a field is later added under a name that the table lists without a counterpart, the table
    must be updated: the field may be that counterpart."""
    without = [
        name for name, key in {**KEYS, **_PYTHON_KEYS}.items()
        if key.support in (Support.REFUSED, Support.WITHOUT_EFFECT)
    ]  # fmt: skip
    spelled = {name for name in without if name.replace(".", "_") in OURS}
    assert spelled == {"ssl.keystore.location"}  # PKCS#12 in librdkafka, PEM here


@pytest.mark.parametrize(
    ("name", "value", "setting", "expected"),
    [
        ("metadata.broker.list", "c", "bootstrap_servers", ("c:9092",)),
        ("queue.buffering.max.kbytes", "64", "buffer_memory", 65_536),
        ("message.timeout.ms", 0, "delivery_timeout_ms", 2**31 - 1),
        ("delivery.timeout.ms", "60000", "delivery_timeout_ms", 60_000),
        ("connections.max.idle.ms", 0, "connections_max_idle_ms", -1),
        ("socket.send.buffer.bytes", "0", "send_buffer_bytes", -1),
        ("request.required.acks", -1, "acks", "all"),
        ("message.max.bytes", "2000000", "max_request_size", 2_000_000),
        ("queue.buffering.max.ms", 30, "linger_ms", 30),
        ("queue.buffering.max.ms", "0.5", "linger_ms", 1),
        ("linger.ms", 0.5, "linger_ms", 1),
        ("linger.ms", "5", "linger_ms", 5),
        ("topic.metadata.refresh.interval.ms", -1, "metadata_max_age_ms", 2**31 - 1),
        ("topic.metadata.refresh.interval.ms", 7, "metadata_max_age_ms", 7),
        ("compression.codec", "lz4", "compression_type", "lz4"),
        ("enable.idempotence", "false", "enable_idempotence", False),
        ("partitioner", "random", "partitioner_ignore_keys", True),
    ],
)
def test_a_translated_setting_reaches_the_configuration(
    name: str, value: Any, setting: str, expected: Any
) -> None:
    given = {name: value} if setting == "bootstrap_servers" else {**SERVERS, name: value}
    config = ProducerConfig.from_mapping(translate(given).settings)
    assert getattr(config, setting) == expected


@pytest.mark.parametrize(
    ("given", "request_timeout"),
    [
        ({"message.timeout.ms": 5_000}, 4_995),
        ({"message.timeout.ms": 5_000, "request.timeout.ms": "10000", "linger.ms": 100}, 4_900),
        ({"message.timeout.ms": 5_000, "request.timeout.ms": 3_000}, 3_000),
        ({"message.timeout.ms": 60_000}, 30_000),
        ({}, 30_000),
    ],
)
def test_a_request_has_no_more_time_than_its_records(
    given: dict[str, Any], request_timeout: int
) -> None:
    """As in librdkafka, which accepts a message.timeout.ms below its request.timeout.ms."""
    config = ProducerConfig.from_mapping(translate({**SERVERS, **given}).settings)
    assert config.request_timeout_ms == request_timeout


def test_a_linger_of_the_whole_message_timeout_is_refused() -> None:
    given = {**SERVERS, "message.timeout.ms": 1_000, "linger.ms": 1_000}
    with pytest.raises(ConfigError, match="delivery_timeout_ms=1000"):
        ProducerConfig.from_mapping(translate(given).settings)


def test_a_compression_level_belongs_to_its_codec() -> None:
    config = checked(compression__type="zstd", compression__level="7")
    assert (config.compression_zstd_level, config.compression_lz4_level) == (7, 9)
    assert checked(compression__type="lz4", compression__level=-1).compression_lz4_level == 9


@pytest.mark.parametrize("codec", LEVELS)
def test_every_codec_with_levels_takes_one(codec: str) -> None:
    config = checked(compression__type=codec, compression__level="2")
    assert getattr(config, f"compression_{codec}_level") == 2


def test_partitioners() -> None:
    assert isinstance(translate(SERVERS).partitioner, ConsistentRandomPartitioner)
    assert translate({**SERVERS, "partitioner": "murmur2_random"}).partitioner is None
    with pytest.raises(ConfigError, match="partitioner='fnv1a' is not supported: choose"):
        translate({**SERVERS, "partitioner": "fnv1a"})


def test_tls_and_sasl() -> None:
    config = checked(
        security__protocol="sasl_plaintext", sasl__mechanisms="PLAIN", sasl__username="u",
        sasl__password="hunter2",
    )  # fmt: skip
    assert config.sasl_allow_cleartext
    assert "hunter2" not in repr(config)
    tls = checked(security__protocol="ssl", ssl__endpoint__identification__algorithm="none")
    assert tls.ssl_endpoint_identification_algorithm == ""


OIDC = {
    **SERVERS, "security.protocol": "sasl_ssl", "sasl.mechanisms": "OAUTHBEARER",
    "sasl.oauthbearer.method": "oidc", "sasl.oauthbearer.client.id": "me",
    "sasl.oauthbearer.client.secret": "hunter2",
    "sasl.oauthbearer.token.endpoint.url": "https://idp.example.com/token",
}  # fmt: skip


def test_oidc_is_a_token_provider() -> None:
    found = translate(OIDC)
    assert isinstance(found.settings["sasl_token_provider"], OidcTokens)
    assert isinstance(found.settings["sasl_token_provider"]._secret, Secret)
    ProducerConfig.from_mapping(found.settings)
    assert "hunter2" not in repr(found)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"sasl.oauthbearer.method": "default"}, "needs sasl.oauthbearer.method=oidc"),
        ({"sasl.oauthbearer.method": "other"}, "choose default or oidc"),
        ({"sasl.oauthbearer.client.id": ""}, "oidc needs sasl.oauthbearer.client.id"),
        ({"sasl.oauthbearer.client.credentials.client.id": "x"}, "under two names"),
    ],
)
def test_an_incomplete_oidc_configuration_is_refused(change: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError, match=text) as raised:
        translate(OIDC | change)
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"linger.ms": 1, "queue.buffering.max.ms": 2}, "are the same setting: remove one"),
        ({"queue.buffering.max.kbytes": "many"}, "must be a whole number"),
        ({"queue.buffering.max.kbytes": True}, "must be a whole number"),
        ({"linger.ms": "soon"}, "linger.ms='soon': must be a number of milliseconds"),
        ({"linger.ms": float("inf")}, "linger.ms=inf: must be a number of milliseconds"),
        ({"linger.ms": True}, "linger.ms=True: must be a number of milliseconds"),
        ({"error_cb": print}, "takes an Observer instead"),
        ({"oauth_cb": print}, "TokenProvider"),
        ({"enable.ssl.certificate.verification": False}, "always verified"),
    ],
)
def test_what_cannot_be_translated_is_an_error(given: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        translate({**SERVERS, **given})


@pytest.mark.parametrize(("name", "text"), [("group.id", "not a setting"), ("lingerms", "linger")])
def test_an_unknown_setting_is_refused_by_the_configuration(name: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        ProducerConfig.from_mapping(translate({**SERVERS, name: "1"}).settings)


def test_one_error_has_all_problems_and_no_secret() -> None:
    given = {**SERVERS, "plugin.library.paths": "x", "interceptors": [], "linger.ms": "soon"}
    with pytest.raises(ConfigError) as raised:
        translate({**given, "sasl.password": "hunter2"})
    assert str(raised.value) == (
        "3 settings cannot be translated: "
        "(1) 'plugin.library.paths' is not supported: libraries of librdkafka cannot be loaded; "
        "remove it; "
        "(2) 'interceptors' is not supported: Producer takes interceptors=[...]; remove it; "
        "(3) linger.ms='soon': must be a number of milliseconds"
    )


def test_the_table_of_the_docs_is_that_of_the_code() -> None:
    path = ROOT / ".ci" / "librdkafka_table.py"
    spec = importlib.util.spec_from_file_location("librdkafka_table", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    text = module.PAGE.read_text(encoding="utf-8")
    assert "`queue.buffering.max.kbytes` | translated | `buffer_memory`" in text
    assert module.updated(text) == text, "run .ci/librdkafka_table.py"
