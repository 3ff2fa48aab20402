"""The check of words reports them in prose only, and the repository passes the check."""

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


@pytest.mark.parametrize(
    "text",
    [
        '"""As `send`, but later."""',
        '"""Raises: as `send`."""',
        "# offsets, as Java's client",
        "# slots, as those of polars",
        "# Called once, also if it fails",
        "# what is no `Exception`",
        "# exists since version 4",
        "# the response is not waited for",
        "# topics that were in no response yet",
        "# the node tried longest ago",
        "# the metadata proved wrong",
        "# after so many seconds",
        "# -- inside ----",
        "# lower epochs are ignored, like in Java",
        "# else the task was cancelled",
        '"""The leader, None if there is none."""',
        "# the metadata lack the topic",
        "# runs in the next pass of the loop",
        "# Slots that were counted before.",
        "# Also if no broker answers",
        "# no record was sent in between",
    ],
)
def test_phrases_of_the_list_are_found(text: str) -> None:
    words = check.vocabulary(check.WORDS.read_text(encoding="utf-8"))
    assert len(check.unwanted_words(text, ".py", words)) == 1


def test_similar_phrases_are_allowed() -> None:
    words = check.vocabulary(check.WORDS.read_text(encoding="utf-8"))
    text = (
        '"""Like `send`; see `flush`. There are no `Record`s."""\n'
        "# The caller has waited for it, as an exception of Java shows, also in inside jobs\n"
        "# The brokers in the metadata have changed; one pass of the sender, or None if due\n"
    )
    assert check.unwanted_words(text, ".py", words) == []
