"""`aiokprod config --from`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest


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
