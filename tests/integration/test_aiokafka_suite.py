"""aiokafka's own producer tests (release 0.14.0) with the class of `aiokprod.compat.aiokafka`.

The files are in `aiokafka_suite`, unchanged; only the fixtures that start Kafka are replaced. They
run in a separate process, because `install` changes aiokafka for the whole process.
"""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
SUITE: Final = Path(__file__).parent / "aiokafka_suite"

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
"""Tests that replace or read parts inside aiokafka's producer. `tests/compat` and `tests/scenarios`
test the same behaviour through the public interface."""


def test_aiokafkas_own_producer_tests_pass(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    command = [
        sys.executable, "-m", "pytest", "-q", "-c", str(SUITE / "pytest.ini"), "--rootdir",
        str(ROOT), f"--junitxml={report}", str(SUITE),
    ]  # fmt: skip
    for name in PRIVATE:
        command += ["--deselect", _node(name)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-5_000:] + done.stderr[-2_000:]
    cases = list(ElementTree.parse(report).iter("testcase"))
    assert len(cases) == 26
    assert not any(list(case.iter(kind)) for case in cases for kind in ("skipped", "failure"))


def _node(name: str) -> str:
    transactional = name.startswith("test_producer_transactional")
    module = "test_transactional_producer" if transactional else "test_producer"
    folder = SUITE.relative_to(ROOT).as_posix()
    return f"{folder}/{module}.py::TestKafkaProducerIntegration::{name}"
