"""mypy and pyright report each wrong usage of `wrong_usages.py` and no right one.

pyright runs if it is installed, or if AIOKPROD_PYRIGHT names its program; AIOKPROD_PYRIGHT=required
fails the test without it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FILE = Path(__file__).with_name("wrong_usages.py")
ROOT = Path(__file__).parents[2]
LINES = FILE.read_text(encoding="utf-8").splitlines()
WRONG = {number for number, line in enumerate(LINES, 1) if line.endswith("# wrong")}


def test_there_are_enough_usages() -> None:
    assert len(WRONG) >= 30


def test_mypy_reports_the_wrong_usages_only() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--no-error-summary", "--hide-error-context", str(FILE)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.stderr == ""
    found = re.findall(r"wrong_usages\.py:(\d+): error:", done.stdout)
    assert {int(line) for line in found} == WRONG, done.stdout


def test_pyright_reports_the_wrong_usages_only() -> None:
    given = os.environ.get("AIOKPROD_PYRIGHT", "")
    program = shutil.which("pyright" if given in ("", "required") else given)
    if program is None:
        assert not given, "pyright is not installed"
        pytest.skip("pyright is not installed")
    done = subprocess.run(
        [program, "--pythonpath", sys.executable, "--outputjson", str(FILE)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    report = json.loads(done.stdout)
    found = {
        entry["range"]["start"]["line"] + 1
        for entry in report["generalDiagnostics"]
        if entry["severity"] == "error" and Path(entry["file"]).name == FILE.name
    }
    assert found == WRONG, done.stdout
