"""The check of the Markdown files finds each kind of error, and the repository passes it."""

from __future__ import annotations

import pytest

from tests.ci.test_audit import ROOT, load

check = load("check_docs")


def test_documents_of_this_repository_pass(capsys: pytest.CaptureFixture[str]) -> None:
    assert check.main() == 0, capsys.readouterr().out


def test_long_lines_are_found_but_not_in_tables_and_code() -> None:
    long = "x " * 60
    assert check.long_lines(f"short\n{long}\n| {long} |\n```\n{long}\n```\n") == [
        "2: 120 characters, at most 100"
    ]


def test_links_to_missing_files_and_headings_are_found() -> None:
    page = ROOT / "README.md"
    assert check.broken_links(page, "[a](DESIGN.md#goals) [b](https://x.y) `[c](no.md)`") == []
    assert check.broken_links(page, "[a](nowhere.md)") == ["1: nowhere.md: no such file"]
    assert check.broken_links(page, "[a](../outside.md)") == ["1: ../outside.md: no such file"]
    assert check.broken_links(page, "[a](DESIGN.md#no)") == ["1: DESIGN.md#no: no such heading"]


def test_anchors_are_those_of_github() -> None:
    text = "# One: *two*\n## `a_b` and [link](x.md)\n```\n# code\n```\n"
    assert check.anchors(text) == {"one-two", "a_b-and-link"}
