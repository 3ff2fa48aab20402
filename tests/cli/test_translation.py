"""`aiokprod config --from`: translation of the settings of other clients."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from aiokprod._cli.translation import translated


def call(run: Any, tmp_path: Path, source: str, given: dict[str, Any]) -> Any:
    path = tmp_path / "client.json"
    path.write_text(json.dumps(given))
    return run("config", "--from", source, str(path))


def test_librdkafka(run: Any, tmp_path: Path) -> None:
    code, out, err = call(
        run, tmp_path, "librdkafka",
        {"metadata.broker.list": "b", "queue.buffering.max.kbytes": 64, "batch.num.messages": 9,
         "security.protocol": "sasl_ssl", "sasl.mechanisms": "PLAIN", "sasl.username": "u",
         "sasl.password": "hunter2"},
    )  # fmt: skip
    assert code == 0, err
    assert "    buffer_memory=65536,\n" in out
    assert "    partitioner=ConsistentRandomPartitioner(),\n" in out
    assert "no effect: batch.num.messages" in err
    assert "hunter2" not in out + err


def test_librdkafka_names_what_is_refused(run: Any, tmp_path: Path) -> None:
    code, out, err = call(
        run, tmp_path, "librdkafka", {"bootstrap.servers": "b", "plugin.library.paths": "x"}
    )
    assert (code, out) == (2, "")
    assert "'plugin.library.paths' is not supported: libraries" in err


def test_aiokafka(run: Any, tmp_path: Path) -> None:
    code, out, err = call(
        run, tmp_path, "aiokafka", {"bootstrap_servers": "b", "max_batch_size": "4096", "acks": "1"}
    )
    assert code == 0, err
    assert "    batch_size=4096,\n" in out
    assert "    acks=1,\n" in out
    assert "default: linger_ms=5, adaptive (aiokafka: 0)" in err


@pytest.mark.parametrize(("check", "expected"), [(True, "'https'"), (False, "''")])
def test_kafka_python(run: Any, tmp_path: Path, check: bool, expected: str) -> None:
    code, out, err = call(
        run, tmp_path, "kafka-python",
        {"bootstrap_servers": "b:1", "security_protocol": "SSL", "ssl_check_hostname": check,
         "linger_ms": "3"},
    )  # fmt: skip
    assert code == 0, err
    assert f"    ssl_endpoint_identification_algorithm={expected},\n" in out
    assert "    linger_ms=3,\n" in out


def test_kafka_python_settings_given_twice(run: Any, tmp_path: Path) -> None:
    code, _, err = call(
        run, tmp_path, "kafka-python",
        {"bootstrap_servers": "b:1", "sasl_plain_username": "u", "sasl_username": "u"},
    )  # fmt: skip
    assert code == 2
    assert "are the same setting" in err


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("ssl_cafile", "ssl_truststore_location"),
        ("ssl.cafile", "ssl_truststore_location"),
        ("sasl_plain_username", "sasl_username"),
        ("receive_message_max_bytes", "receive_max_bytes"),
        ("linger.ms", "linger.ms"),
    ],
)
def test_kafka_python_names_that_mean_the_same(theirs: str, ours: str) -> None:
    assert translated("kafka-python", {theirs: "1"}).settings == {ours: "1"}


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("bootstrap_timeout_ms", "use socket_connection_setup_timeout_ms (for each connection"),
        ("sasl_kerberos_name", "use sasl_kerberos_principal (a principal as text"),
        ("socks5_proxy", "without a counterpart"),
    ],
)
def test_kafka_python_names_with_another_meaning_are_refused(
    run: Any, tmp_path: Path, name: str, advice: str
) -> None:
    code, out, err = call(run, tmp_path, "kafka-python", {"bootstrap_servers": "b:1", name: "1"})
    assert (code, out) == (2, "")
    assert advice in err


@pytest.mark.parametrize(
    ("given", "ours"),
    [
        ({"enable_idempotence": "False"}, "enable_idempotence=False"),
        ({"enable_idempotence": True}, "enable_idempotence=True"),
        ({"request_timeout_ms": "9000"}, "request_timeout_ms=9000"),
        ({"acks": "all"}, "acks='all'"),
    ],
)
def test_aiokafka_values_of_files_get_the_type_of_the_argument(
    run: Any, tmp_path: Path, given: dict[str, Any], ours: str
) -> None:
    code, out, err = call(run, tmp_path, "aiokafka", {"bootstrap_servers": "b", **given})
    assert code == 0, err
    assert f"    {ours},\n" in out


def test_librdkafka_partitioner_of_java_is_the_default_here(run: Any, tmp_path: Path) -> None:
    code, out, err = call(
        run, tmp_path, "librdkafka", {"bootstrap.servers": "b", "partitioner": "murmur2_random"}
    )
    assert code == 0, err
    assert "partitioner" not in out


def test_librdkafka_oidc_is_an_object_to_be_passed(run: Any, tmp_path: Path) -> None:
    code, out, err = call(
        run, tmp_path, "librdkafka",
        {"bootstrap.servers": "b", "security.protocol": "sasl_ssl",
         "sasl.mechanisms": "OAUTHBEARER", "sasl.oauthbearer.method": "oidc",
         "sasl.oauthbearer.client.id": "me", "sasl.oauthbearer.client.secret": "hunter2",
         "sasl.oauthbearer.token.endpoint.url": "https://idp.example.com/token"},
    )  # fmt: skip
    assert code == 0, err
    assert "pass OidcTokens(url, client_id, client_secret)" in err
    assert "hunter2" not in out + err


def test_librdkafka_settings_without_effect_on_delivery_are_remarks(
    run: Any, tmp_path: Path
) -> None:
    given = {"statistics.interval.ms": "60000", "client.rack": "r", "enabled_events": 1}
    code, out, err = call(
        run, tmp_path, "librdkafka", {"bootstrap.servers": "b", "builtin.features": "x", **given}
    )
    assert code == 0
    assert out.startswith("Producer(")
    assert [line.split(":")[:3] for line in err.splitlines()] == [
        ["aiokprod", " no effect", f" {name}"] for name in ("builtin.features", *given)
    ]
    assert "call Producer.metrics()" in err
    silent = {"bootstrap.servers": "b", "statistics.interval.ms": "0", "enabled_events": 0}
    assert call(run, tmp_path, "librdkafka", silent)[2] == ""


def test_all_problems_are_listed_with_the_names_of_the_file(run: Any, tmp_path: Path) -> None:
    code, out, err = call(
        run, tmp_path, "librdkafka",
        {"bootstrap.servers": "b", "plugin.library.paths": "x", "lingr.ms": 5,
         "enable.ssl.certificate.verification": "false", "partitioner": "fnv1a",
         "queue.buffering.max.kbytes": "many", "batch.size": "big", "acks": 7,
         "linger.ms": "1", "queue.buffering.max.ms": "2", "sasl.oauthbearer.scope": "s",
         "compression.level": "high", "log_level": 7, "request.timeout.ms": "short",
         "message.timeout.ms": 1000},
    )  # fmt: skip
    assert (code, out) == (2, "")
    assert err.splitlines() == [
        f"aiokprod: {text}"
        for text in (
            'no effect: log_level: the logger is "aiokprod"; configure it with the logging module',
            "'plugin.library.paths' is not supported: libraries of librdkafka cannot be loaded; "
            "remove it",
            "'enable.ssl.certificate.verification' is not supported: certificates are always "
            "verified; for anything else pass an ssl.SSLContext to Producer as ssl_context; "
            "remove it, or set it to true",
            "queue.buffering.max.kbytes='many': must be a whole number",
            "'queue.buffering.max.ms' and 'linger.ms' are the same setting: remove one",
            "compression.level='high': must be a whole number",
            "partitioner='fnv1a' is not supported: choose consistent_random, murmur2_random, "
            "random, or pass a callable to Producer as partitioner=...",
            "'sasl.oauthbearer.scope' needs sasl.oauthbearer.method=oidc",
            "request.timeout.ms='short': must be a whole number",
            "'lingr.ms' is not a setting; did you mean 'linger.ms'?",
            "batch.size='big': use a decimal integer",
            'acks=7: use 0, 1 or "all"',
        )
    ]


@pytest.mark.parametrize("source", ["java", "kafka-python"])
def test_all_wrong_settings_of_other_clients_are_listed(
    run: Any, tmp_path: Path, source: str
) -> None:
    given = {"lingr.ms": 1, "batch_size": -1, "linger.ms": "x", "sasl.password": "hunter2"}
    code, out, err = call(run, tmp_path, source, given)
    assert (code, out) == (2, "")
    assert err.splitlines() == [
        "aiokprod: 'lingr.ms' is not a setting; did you mean 'linger.ms'?",
        "aiokprod: batch_size=-1: use an int of 0 to 2147483647",
        "aiokprod: linger.ms='x': use a decimal integer",
        'aiokprod: bootstrap_servers is missing: name at least one "host:port"',
    ]


def test_librdkafka_settings_that_follow_from_others_are_remarks(run: Any, tmp_path: Path) -> None:
    code, out, err = call(
        run, tmp_path, "librdkafka",
        {"bootstrap.servers": "b", "message.timeout.ms": 30_000, "linger.ms": 20,
         "security.protocol": "sasl_plaintext", "sasl.mechanisms": "PLAIN", "sasl.username": "u",
         "sasl.password": "hunter2"},
    )  # fmt: skip
    assert code == 0
    assert "    request_timeout_ms=29980,\n" in out
    assert err.splitlines() == [
        "aiokprod: added: sasl_allow_cleartext=True: credentials are sent without encryption, as "
        "in librdkafka",
        "aiokprod: added: request_timeout_ms=29980: message.timeout.ms without linger.ms, because "
        "a request has no more time than its records, as in librdkafka; otherwise it would be "
        "30000",
    ]
