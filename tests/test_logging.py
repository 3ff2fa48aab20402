"""Every log record of the library has structured fields, which docs/monitoring.md lists."""

from __future__ import annotations

import ast
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from aiokprod._log_fields import log_fields
from aiokprod.errors import Code, KafkaError, error_code
from aiokprod.records import TopicPartition

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "aiokprod"
METHODS = {"debug", "info", "warning", "error", "exception", "critical", "log"}


def log_calls(path: Path) -> Iterator[ast.Call]:
    """Yield the calls that log in a module."""
    for node in ast.walk(ast.parse(path.read_text())):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in METHODS
            and isinstance(node.func.value, ast.Name)
            and node.func.value.id in ("log", "logger", "logging")
        ):
            yield node


def modules() -> list[Path]:
    return [p for p in sorted(PACKAGE.rglob("*.py")) if "testing" not in p.parts]


def test_every_log_call_has_structured_fields() -> None:
    calls = 0
    for path in modules():
        for call in log_calls(path):
            calls += 1
            where = f"{path}:{call.lineno}"
            assert any(keyword.arg == "extra" for keyword in call.keywords), where
    assert calls > 40


def test_monitoring_page_has_every_event() -> None:
    events: set[str] = set()
    for path in modules():
        text = path.read_text()
        events.update(re.findall(r'(?:log|_)_?fields\(\s*"(\w+)"', text))
    page = (ROOT / "docs" / "monitoring.md").read_text(encoding="utf-8")
    table = page.partition("## Logs")[2]
    named = set(re.findall(r"^\| (`[^|]*`) \|", table, re.MULTILINE))
    listed = {name for row in named for name in re.findall(r"`(\w+)`", row)}
    listed = {name for name in listed if not name.startswith("kafka_")}
    assert {e for e in events if not e.startswith("spark_")} <= listed
    assert listed <= events | {"spark_*"}


def test_fields_have_the_prefix_and_no_text_of_the_error() -> None:
    error = KafkaError("secret words", code=error_code(Code.NOT_LEADER_OR_FOLLOWER))
    fields = log_fields("e", topic_partition=TopicPartition("t", 3), error=error, seconds=1.5)
    assert fields == {
        "kafka_event": "e",
        "kafka_topic": "t",
        "kafka_partition": 3,
        "kafka_error": "KafkaError",
        "kafka_code": "NOT_LEADER_OR_FOLLOWER",
        "kafka_seconds": 1.5,
    }
    assert log_fields("e", error=ValueError("x")) == {
        "kafka_event": "e",
        "kafka_error": "ValueError",
    }


def test_fields_do_not_collide_with_those_of_log_records(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("aiokprod").warning("text", extra=log_fields("e", name="n", message="m"))
    (record,) = caplog.records
    assert (record.getMessage(), vars(record)["kafka_name"]) == ("text", "n")
