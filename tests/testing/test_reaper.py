"""The helper process that cleans up after an owner was killed."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

from aiokprod.testing.kafka_node import free_ports
from aiokprod.testing.reaper import Reaper, serve
from tests.hang import HANG_S

# The process exits when its parent's pipe closes, so it does not outlive a failed test.
WAITS = [sys.executable, "-c", "import sys; sys.stdin.read()"]


def waiting_process() -> subprocess.Popen[bytes]:
    return subprocess.Popen(WAITS, stdin=subprocess.PIPE, start_new_session=True)


def test_reaper_owner_gone_kills_listed_and_removes_folders(tmp_path: Path) -> None:
    folder, kept = tmp_path / "data", tmp_path / "logs"
    folder.mkdir()
    kept.mkdir()
    with waiting_process() as listed, waiting_process() as forgotten:
        reaper = Reaper()
        reaper.add_process(listed.pid)
        reaper.add_process(forgotten.pid)
        reaper.forget_process(forgotten.pid)
        reaper.add_folder(folder)
        reaper.add_folder(kept)
        reaper.forget_folder(kept)
        reaper.close()
        assert listed.wait(timeout=HANG_S) < 0
        assert forgotten.poll() is None
    assert not folder.exists()
    assert kept.exists()


def test_serve_process_already_gone_ignored() -> None:
    with waiting_process() as process:
        pid = process.pid
    serve(io.StringIO(f"+{pid}\n"))


def test_free_ports_distinct_and_below_the_ephemeral_range() -> None:
    ports = free_ports(6)
    assert len(set(ports)) == 6
    assert all(20000 <= port < 32000 for port in ports)
