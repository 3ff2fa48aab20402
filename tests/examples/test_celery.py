"""The Celery example in a real worker, which the test ends with SIGTERM."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from aiokprod.testing.mock_cluster import MockCluster
from tests.examples.servers import ROOT
from tests.hang import HANG_S, wait_until
from tests.integration.checker import read_topic

SENDER = """
    from examples.celery_app import record_click, record_order
    import tests.examples.celery_worker
    for number in range(200):
        task = (record_click if number % 2 else record_order).delay({"number": number})
        print(task.id, number)
"""


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_celery_worker_loses_and_doubles_nothing_at_sigterm(tmp_path: Path, pool: str) -> None:
    (tmp_path / "control").mkdir()
    log = tmp_path / "worker.log"
    with MockCluster() as cluster, log.open("w") as output:
        environment = os.environ | {
            "KAFKA_BOOTSTRAP": cluster.bootstrap_servers, "CELERY_FOLDER": str(tmp_path),
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        }  # fmt: skip
        sent = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(SENDER)],
            cwd=ROOT, env=environment, capture_output=True, text=True, check=True, timeout=300,
        )  # fmt: skip
        numbers = {task: int(number) for task, number in map(str.split, sent.stdout.splitlines())}
        worker = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", "tests.examples.celery_worker", "worker",
             "--pool", pool, "-c", "2", "-l", "INFO", "--without-gossip", "--without-mingle"],
            cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip

        def done() -> list[str]:
            return re.findall(r"\[([0-9a-f-]{36})\] succeeded", log.read_text())

        try:
            wait_until(lambda: len(done()) >= 50 or worker.poll() is not None)
            assert worker.poll() is None, log.read_text()
            worker.send_signal(signal.SIGTERM)
            worker.wait(HANG_S)
        finally:
            if worker.poll() is None:
                os.killpg(worker.pid, signal.SIGKILL)
        found = [
            json.loads(value or b"{}")["number"]
            for _, _, _, value in read_topic(cluster.bootstrap_servers, "tasks")
        ]
    succeeded = {numbers[task] for task in done()}
    assert len(succeeded) >= 50
    assert len(found) == len(set(found)), log.read_text()
    assert succeeded <= set(found), log.read_text()
