"""Test suites of other projects, unchanged, with `aiokprod.compat`: those of aiokafka's producer,
of OpenTelemetry's instrumentation of it, and of FastStream's Kafka broker.

`make compat-suites` fetches the sources to .cache/suites, or AIOKPROD_SUITES names a folder that
has them; without them the tests are skipped. Only fixtures are replaced, by the plug-ins in
`compat_suites`. Each suite runs in a separate process, because `install` changes aiokafka for the
whole process.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
PLUGINS: Final = Path(__file__).parent / "compat_suites"
SUITES: Final = Path(os.environ.get("AIOKPROD_SUITES", ROOT / ".cache" / "suites"))

PRIVATE: Final = {
    "test_producer_context_manager": "_sender",
    "test_producer_notopic": "AIOKafkaClient._metadata_update is replaced",
    "test_producer_send_leader_notfound": "ClusterMetadata.leader_for_partition is replaced",
    "test_producer_send_timeout": "client.send is replaced",
    "test_producer_send_error": "client.send is replaced",
    "test_producer_correct_time_returned": "client.send is replaced",
    "test_producer_send_empty_batch": "_sender",
    "test_producer_send_reenque_resets_waiters": "client.send is replaced",
    "test_producer_idempotence_configuration": "_sender",
    "test_producer_indempotence_no_duplicates": "client.send is replaced",
    "test_producer_invalid_leader_retry_metadata": "_metadata",
    "test_producer_leader_change_preserves_order": "_metadata",
    "test_producer_sender_errors_propagate_to_producer": "_sender",
    "test_producer_transactional_restart_reaquire_pid": "_txn_manager",
    "test_producer_transactional_raise_out_of_sequence": "_txn_manager",
    "test_producer_transactional_aborting_previous_failure": "_txn_manager",
    "test_producer_transactional_cancel_txn_methods": "_txn_manager",
}
"""Tests of aiokafka that replace or read parts inside its producer, and the part. `tests/compat`
and `tests/scenarios` test the same behaviour through the public interface."""


def source(name: str) -> Path:
    """The sources of a project."""
    found = SUITES / name
    if not found.is_dir():
        pytest.skip(f"no sources of {name}: make compat-suites fetches them")
    return found


def run(plugin: str, *arguments: str, cwd: Path, paths: tuple[Path, ...], report: Path) -> int:
    """Run a suite; the number of its tests, all of which have passed."""
    command = [
        sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", str(cwd),
        "-p", "no:cacheprovider", "-p", plugin, f"--junitxml={report}", *arguments,
    ]  # fmt: skip
    path = os.pathsep.join(map(str, (*paths, PLUGINS, ROOT)))
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout[-5_000:] + done.stderr[-2_000:]
    cases = list(ElementTree.parse(report).iter("testcase"))
    assert not any(list(case.iter(kind)) for case in cases for kind in ("skipped", "failure"))
    return len(cases)


def test_aiokafkas_own_producer_tests_pass(tmp_path: Path) -> None:
    # A copy, without aiokafka's conftest.py: its package `tests` would hide that of aiokprod.
    suite = tmp_path / "aiokafka_suite"
    suite.mkdir()
    for name in ("_testutil", "test_producer", "test_transactional_producer"):
        shutil.copy(source("aiokafka") / "tests" / f"{name}.py", suite)
    deselected = [f"--deselect={_node(name)}" for name in PRIVATE]
    count = run(
        "aiokafka_fixtures", "--import-mode=importlib", "-p", "no:asyncio",
        "-W", "error", "-W", "ignore::ResourceWarning",  # consumers left to the collector
        "-W", "ignore::pytest.PytestUnraisableExceptionWarning",
        "-W", "ignore::pytest.PytestUnknownMarkWarning", *deselected, suite.name,
        cwd=tmp_path, paths=(), report=tmp_path / "report.xml",
    )  # fmt: skip
    assert count == 26


def _node(name: str) -> str:
    transactional = name.startswith("test_producer_transactional")
    module = "test_transactional_producer" if transactional else "test_producer"
    return f"aiokafka_suite/{module}.py::TestKafkaProducerIntegration::{name}"


def test_the_tests_of_opentelemetrys_instrumentation_pass(tmp_path: Path) -> None:
    folder = source("opentelemetry-instrumentation-aiokafka")
    count = run(
        "otel_fixtures", "tests", cwd=folder, paths=(source("packages"),),
        report=tmp_path / "report.xml",
    )  # fmt: skip
    assert count == 17


def test_faststreams_tests_of_publishing_pass(tmp_path: Path) -> None:
    # Only its tests: the checkout has the package too, which would hide the installed release.
    (tmp_path / "tests").symlink_to(source("faststream") / "tests", target_is_directory=True)
    count = run(
        "faststream_fixtures", "-o", "asyncio_default_fixture_loop_scope=function",
        "tests/brokers/kafka/test_publish.py", cwd=tmp_path, paths=(tmp_path, source("packages")),
        report=tmp_path / "report.xml",
    )  # fmt: skip
    assert count > 20
