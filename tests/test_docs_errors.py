"""docs/errors.md: an entry for every error class, tables that match the code, and examples that
run."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from aiokprod import Producer, errors
from aiokprod.errors import Code, KafkaError
from aiokprod.testing import Api, FakeCluster, run
from aiokprod.testing.fake_cluster import lose_answer

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
SCRIPT = runpy.run_path(str(ROOT / ".ci" / "errors_tables.py"))
CATALOGUE = TEXT.split("\n## Catalogue\n")[1].split("\n## ")[0]
ENTRIES = dict(
    re.findall(r"^### (\w+)\n\n(.*?)\n(?=\n###|\Z)", CATALOGUE, re.MULTILINE | re.DOTALL)
)


def public_classes() -> list[str]:
    return [
        name
        for name in errors.__all__
        if isinstance(value := getattr(errors, name), type) and issubclass(value, KafkaError)
    ]


def test_every_public_class_has_an_entry_and_every_entry_a_class() -> None:
    assert sorted(ENTRIES) == sorted(re.findall(r"^### (\w+)$", CATALOGUE, re.MULTILINE))
    assert sorted(ENTRIES) == sorted(public_classes())


def test_entries_are_in_the_order_of_the_table() -> None:
    rows = re.findall(r"^\| \[`(\w+)`\]", CATALOGUE, re.MULTILINE)
    assert rows == list(ENTRIES)


def test_tables_are_those_of_the_code() -> None:
    """After a change of the classes or codes, run `python .ci/errors_tables.py`."""
    assert SCRIPT["updated"](TEXT) == TEXT


def test_a_row_that_differs_from_the_code_is_written_again() -> None:
    stale = TEXT.replace("| NOT_SENT | yes |", "| UNKNOWN | no |")
    assert stale != TEXT
    assert SCRIPT["updated"](stale) == TEXT


@pytest.mark.parametrize("name", ["classes", "codes"])
def test_a_page_without_a_marker_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"table of {name} are missing"):
        SCRIPT["updated"](TEXT.replace(f"<!-- end of {name} -->", ""))


def test_the_table_of_codes_has_every_code_but_none() -> None:
    table = TEXT.split("<!-- codes -->")[1].split("<!-- end of codes -->")[0]
    rows = re.findall(r"^\| (-?\d+) \| `(\w+)` \| \[`(\w+)`\]", table, re.MULTILINE)
    assert rows == [
        (str(int(code)), code.name, code.row.exception) for code in Code if code is not Code.NONE
    ]


def example() -> dict[str, Any]:
    (code,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(code, "errors.md", "exec"), names)
    return names


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (None, "stored at offset 0"),
        ("lose", "look it up before you send it again"),
        (Code.INVALID_RECORD, "not stored: "),
        ("no broker", "not stored; the same call may succeed later"),
    ],
)
def test_the_example_tells_outcomes_apart(fault: Code | str | None, said: str) -> None:
    async def main() -> None:
        cluster = FakeCluster(3)
        cluster.create_topic("orders", 1)
        async with Producer(
            bootstrap_servers=cluster.bootstrap_servers, environment=cluster.environment(),
            retries=0, enable_idempotence=False, request_timeout_ms=1_000, close_timeout_ms=0,
        ) as producer:  # fmt: skip
            if fault == "lose":
                cluster.control(Api.PRODUCE, lose_answer())
            elif fault == "no broker":
                for number in (1, 2, 3):
                    cluster.kill(number)
            elif isinstance(fault, Code):
                cluster.fail(Api.PRODUCE, fault)
            assert (await example()["place"](producer, b"1")).startswith(said)

    run(main, debug=False)


def test_the_example_drops_a_line_for_which_there_is_no_room() -> None:
    async def main() -> None:
        cluster = FakeCluster(3)
        async with Producer(
            bootstrap_servers=cluster.bootstrap_servers, environment=cluster.environment(),
        ) as producer:  # fmt: skip
            offer = example()["offer"]
            assert not offer(producer, b"line")  # the metadata is missing
            await producer.partitions_for("lines")
            assert offer(producer, b"line")
            await producer.flush()
            assert cluster.all_values("lines") == [b"line"]

    run(main, debug=False)
