"""Unchanged test suites of other projects with `aiokprod.compat`: of aiokafka's producer, of
OpenTelemetry's instrumentation of that producer, and of publishing with FastStream's Kafka broker.

The files are in `foreign`; only fixtures are replaced. Each suite runs in a separate process,
because `install` changes aiokafka for the whole process.
"""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
SUITES: Final = Path(__file__).parent / "foreign"

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
"""Tests that replace or read internals of aiokafka's producer. `tests/compat` and `tests/scenarios`
test the same behaviour through the public interface."""


def run(
    folder: Path, report: Path, *arguments: str, root: Path, path: tuple[Path, ...] = ()
) -> int:
    """Run a suite in `folder`, assert that all tests pass, and return their number.

    Module names and node ids are relative to `root`.
    """
    command = [
        sys.executable, "-m", "pytest", "-q", "--rootdir", str(root), "--confcutdir", str(folder),
        f"--junitxml={report}",
        *arguments,
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (*path, ROOT)))}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout[-5_000:] + done.stderr[-2_000:]
    cases = list(ElementTree.parse(report).iter("testcase"))
    assert not any(list(case.iter(kind)) for case in cases for kind in ("skipped", "failure"))
    return len(cases)


def test_aiokafkas_own_producer_tests_pass(tmp_path: Path) -> None:
    deselected = [f"--deselect={_node(name)}" for name in PRIVATE]
    folder = SUITES / "aiokafka"
    assert run(folder, tmp_path / "report.xml", *deselected, ".", root=ROOT) == 26


def _node(name: str) -> str:
    transactional = name.startswith("test_producer_transactional")
    module = "test_transactional_producer" if transactional else "test_producer"
    folder = (SUITES / "aiokafka").relative_to(ROOT).as_posix()
    return f"{folder}/{module}.py::TestKafkaProducerIntegration::{name}"


WITH_PLUGIN: Final = ("-c", os.devnull, "-p", "no:cacheprovider", "-p")


def test_the_tests_of_opentelemetrys_instrumentation_pass(tmp_path: Path) -> None:
    arguments = (*WITH_PLUGIN, "otel_fixtures", "tests")
    report = tmp_path / "report.xml"
    folder = SUITES / "opentelemetry"
    assert run(folder, report, *arguments, root=folder, path=(SUITES,)) == 17


def test_faststreams_tests_of_publishing_pass(tmp_path: Path) -> None:
    folder = SUITES / "faststream"
    arguments = (
        *WITH_PLUGIN, "faststream_fixtures", "-o", "asyncio_default_fixture_loop_scope=function",
        "tests/brokers/kafka/test_publish.py",
    )  # fmt: skip
    report = tmp_path / "report.xml"
    # The package of the suite is also named `tests`. The package of aiokprod must not hide it.
    assert run(folder, report, *arguments, root=folder, path=(folder, SUITES)) > 20
