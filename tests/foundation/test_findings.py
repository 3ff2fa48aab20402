from __future__ import annotations

import dataclasses

import pytest

from aiokprod import Finding, Severity


def test_finding_is_a_value_whose_text_has_the_remedy() -> None:
    finding = Finding("no_leader", Severity.ERROR, "topic t", "it has no leader", "start brokers")
    assert str(finding) == "error: topic t: it has no leader. start brokers"
    assert finding == dataclasses.replace(finding)
    assert len({finding, dataclasses.replace(finding)}) == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        finding.code = "other"  # type: ignore[misc]
