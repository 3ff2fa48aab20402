"""`aiokprod config --from`."""

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
