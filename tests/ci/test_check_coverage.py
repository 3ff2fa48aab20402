"""`.ci/check_coverage.py` measures every module, and fails if it measured none."""

from __future__ import annotations

from typing import Any

import pytest

from tests.ci.test_audit import ROOT, load

coverage = load("check_coverage")


def entry(lines: int, branches: int) -> dict[str, Any]:
    return {
        "summary": {
            "covered_lines": lines,
            "num_statements": 100,
            "covered_branches": branches,
            "num_branches": 100,
        },
        "missing_lines": [1],
        "missing_branches": [[1, 2]],
    }


@pytest.mark.parametrize(
    ("lines", "branches", "status"), [(95, 90, 0), (94, 100, 1), (100, 89, 1), (100, 100, 0)]
)
def test_coverage_below_a_threshold_fails(lines: int, branches: int, status: int) -> None:
    assert coverage.check({"a.py": entry(lines, branches)}, ["a.py"], {}) == status


def test_module_that_was_not_measured_fails() -> None:
    assert coverage.check({"a.py": entry(100, 100)}, ["a.py", "b.py"], {}) == 1
    assert coverage.check({}, [], {}) == 1


def test_exception_holds_for_its_module_only_and_must_have_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lower = {"a.py": (50.0, 40.0, "reason")}
    files = {"a.py": entry(50, 40), "b.py": entry(50, 40)}
    assert coverage.check(files, ["a.py"], lower) == 0
    assert "(reason)" in capsys.readouterr().out
    assert coverage.check({"a.py": entry(49, 40)}, ["a.py"], lower) == 1
    assert coverage.check(files, ["a.py", "b.py"], lower) == 1
    assert coverage.check({"b.py": entry(99, 99)}, ["b.py"], lower) == 1


def test_every_module_of_client_engine_and_network_is_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    found = coverage.modules()
    for module in (
        "producer", "_client/runtime", "_client/slow_path", "_client/send_many",
        "_client/send_table", "_client/user_hooks", "_client/transactions", "_security/oidc",
        "_engine/identity/transaction_manager", "_engine/identity/coordinators", "_net/client",
        "_net/tls", "_net/sasl/scram", "_config/fields",
    ):  # fmt: skip
        assert f"aiokprod/{module}.py" in found
    assert all(reason for *_, reason in coverage.LOWER.values())
    assert len(found) == len(set(found)) > 80
