"""mypy and pyright report each wrong usage in `wrong_usages.py`, and no correct usage.

basedpyright is a package of pyright that includes its JavaScript runtime.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

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


def errors_of_pyright(file: Path) -> set[int]:
    """Return the lines of a file in which pyright reports an error. The file sets the mode of
    pyright."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "basedpyright",
            "--pythonpath",
            sys.executable,
            "--outputjson",
            str(file),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == 1, done.stdout
    return {
        entry["range"]["start"]["line"] + 1
        for entry in report["generalDiagnostics"]
        if entry["severity"] == "error" and Path(entry["file"]).name == file.name
    }


def test_pyright_reports_the_wrong_usages_only() -> None:
    assert errors_of_pyright(FILE) == WRONG


def test_pyright_in_strict_mode_accepts_a_program_written_for_aiokafka() -> None:
    file = ROOT / "tests/compat/written_for_aiokafka.py"
    assert "# pyright: strict" in file.read_text(encoding="utf-8")
    assert errors_of_pyright(file) == set()
