"""The check of words finds them in prose only, and the repository passes it."""

from __future__ import annotations

import pytest

from tests.ci.test_audit import load

check = load("check_words")
WORDS = check.vocabulary("# comment\n\nin vain -> without success\nowes? -> is due\n")


def test_files_of_this_repository_pass(capsys: pytest.CaptureFixture[str]) -> None:
    assert check.main() == 0, capsys.readouterr().out


def test_words_are_found_in_documents_but_not_in_code() -> None:
    text = "It waits In vain.\n`in vain`\n```\nin vain\n```\nvain; owe and in\nvain\n"
    assert check.unwanted_words(text, ".md", WORDS) == [
        '1: "In vain": write without success',
        '6: "in vain": write without success',
        '6: "owe": write is due',
    ]


def test_words_are_found_in_comments_and_docstrings_of_tests_only() -> None:
    text = "# owes\ndata = 'owes' \"owe\"\n'''owe'''\n"
    assert check.unwanted_words(text, ".py", WORDS, strings=False) == [
        '1: "owes": write is due',
        '3: "owe": write is due',
    ]


def test_words_are_found_in_comments_and_strings_but_not_in_names() -> None:
    text = (
        "owe = 1  # owes\nowes('''a\nowe''', \"owe\", f'in {owe} vain')\n# tries in\n# vain `owe`\n"
    )
    assert check.unwanted_words(text, ".py", WORDS) == [
        '1: "owes": write is due',
        '3: "owe": write is due',
        '3: "owe": write is due',
        '4: "in # vain": write without success',
    ]
