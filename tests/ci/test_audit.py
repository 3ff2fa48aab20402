"""`.ci/audit.py` fails if it could not check any package."""

from __future__ import annotations

import datetime
import importlib.util
import json
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent.parent
DAY = datetime.date(2026, 11, 23)


def load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"ci_{name}", ROOT / ".ci" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look the module up in sys.modules
    spec.loader.exec_module(module)
    return module


audit = load("audit")
PINS = {"lz4": "4.4", "pyjwt": "2.9"}


def report(*entries: dict[str, Any]) -> str:
    return json.dumps({"dependencies": list(entries), "fixes": []})


def looked(name: str, *ids: str) -> dict[str, Any]:
    return {"name": name, "version": PINS[name.lower()], "vulns": [{"id": one} for one in ids]}


def status(result: Any, *, strict: bool = False, after: int = 0) -> int:
    today = DAY + datetime.timedelta(days=after)
    code: int = audit.judge(result, strict=strict, today=today, since=DAY)
    return code


def test_complete_look_up_passes_and_a_vulnerability_fails() -> None:
    clean = audit.read(PINS, "pypi", report(looked("lz4"), looked("PyJWT")), "")
    assert (status(clean, strict=True, after=999), clean.missing) == (0, {})
    bad = audit.read(PINS, "pypi", report(looked("lz4", "CVE-1"), looked("PyJWT")), "")
    assert status(bad) == 1
    # A vulnerability fails the audit even if other packages could not be looked up.
    assert status(audit.read(PINS, "pypi", report(looked("lz4", "CVE-1")), "")) == 1


@pytest.mark.parametrize(
    "out",
    [
        report(),
        report(looked("lz4")),
        report(looked("lz4"), {"name": "pyjwt", "skip_reason": "not found on PyPI"}),
    ],
)
def test_package_that_was_not_looked_up_fails_a_release_and_is_tolerated_for_30_days(
    out: str,
) -> None:
    result = audit.read(PINS, "pypi", out, "")
    assert "pyjwt" in result.missing
    assert status(result, strict=True) == 2
    assert [status(result, after=days) for days in (0, 30, 31, -1)] == [0, 0, 2, 2]


def test_nothing_to_look_up_is_no_success() -> None:
    assert status(audit.Result(), strict=True) == 2


@pytest.mark.parametrize(
    "errors", ["Traceback\nValueError: x", "", "No module named pip_audit", "error: bad option"]
)
def test_pip_audit_that_crashes_is_never_tolerated(errors: str) -> None:
    for out in ("", "no json", "[]", "{}"):
        with pytest.raises(audit.Broken, match="pip-audit -s pypi failed"):
            audit.read(PINS, "pypi", out, errors)


def test_report_on_another_version_is_never_tolerated() -> None:
    entry = {"name": "lz4", "version": "1.0", "vulns": []}
    with pytest.raises(audit.Broken, match="not requested"):
        audit.read(PINS, "pypi", report(entry), "")


def test_missing_pip_audit_fails_the_audit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", ["audit.py"])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert audit.main() == 2
    assert "pip-audit is not installed" in capsys.readouterr().out


def test_service_that_cannot_be_reached_is_no_crash_and_the_next_one_is_asked() -> None:
    text = "requests.exceptions.ConnectionError: ... NameResolutionError(...)"
    unreachable = audit.read(PINS, "osv", "", text)
    assert set(unreachable.missing) == set(PINS)
    assert status(unreachable, strict=True) == 2
    asked: list[tuple[str, list[str]]] = []

    def asking(pins: dict[str, str], service: str) -> Any:
        asked.append((service, sorted(pins)))
        if service == "pypi":
            return audit.read(pins, service, report(looked("lz4")), "")
        return audit.read(pins, service, report(looked("pyjwt", "GHSA-1")), "")

    whole = audit.look_up(PINS, asking)
    assert asked == [("pypi", ["lz4", "pyjwt"]), ("osv", ["pyjwt"])]
    assert (whole.asked, whole.missing) == ({"lz4", "pyjwt"}, {})
    assert whole.bad == {"pyjwt 2.9": ["GHSA-1"]}


class Installed:
    def __init__(self, version: str, *requires: str) -> None:
        self.version, self.requires = version, list(requires)


def test_indirect_dependencies_extras_and_markers_are_followed() -> None:
    shelf = {
        "pyjwt": Installed("2", "cryptography>=3; extra == 'crypto'", "sphinx; extra == 'docs'"),
        "cryptography": Installed("48", "cffi>=1.14", "gone; python_version < '3'"),
        "cffi": Installed("1", "PyJWT"),  # a dependency cycle
    }

    def find(name: str) -> Any:
        try:
            return shelf[name]
        except KeyError:
            raise metadata.PackageNotFoundError(name) from None

    lines = ("PyJWT[crypto]>=2", "gssapi", "x; python_version < '3'")
    wanted = [Requirement(line) for line in lines]
    pins, absent = audit.closure(wanted, find)
    assert pins == {"pyjwt": "2", "cryptography": "48", "cffi": "1"}
    assert absent == ["gssapi"]
    assert audit.closure([Requirement("pyjwt")], find)[0] == {"pyjwt": "2"}


def test_indirect_dependencies_of_this_project_are_looked_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    import tomllib

    settings = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))
    pins, absent = audit.closure(audit.direct(settings))
    assert {"lz4", "cramjam", "cython", "cryptography", "py4j"} <= pins.keys()
    assert set(absent) <= {"gssapi"}  # gssapi needs system headers, so it may be missing
