"""docs/tuning.md: its figures are those of the benchmarks, and its settings work."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from aiokprod import Producer, ProducerConfig
from aiokprod._metrics.definitions import BY_NAME
from aiokprod.testing import FakeCluster, run

DOCS = Path(__file__).parents[1] / "docs"
TEXT = (DOCS / "tuning.md").read_text(encoding="utf-8")
REPORT = (DOCS / "reports" / "benchmarks.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
FIGURES = re.findall(r"<!-- figures: ([^\n]*) -->\n(.*?)<!-- end of figures -->", TEXT, re.DOTALL)


def rows(table: str) -> dict[str, dict[str, str]]:
    """Case → column → value."""
    lines = [
        [cell.strip() for cell in line.strip("|\n ").split(" | ")] for line in table.splitlines()
    ]
    head, _, *body = [cells for cells in lines if len(cells) > 1 or cells[0].startswith("-")]
    return {cells[0]: dict(zip(head[1:], cells[1:], strict=True)) for cells in body}


@pytest.mark.parametrize(("group", "table"), FIGURES, ids=[group for group, _ in FIGURES])
def test_figures_are_those_of_the_report(group: str, table: str) -> None:
    """After new benchmarks, correct the rows, and what the text concludes from them."""
    found = REPORT.split(f"\n**{group}**\n\n")[1].split("\n\n")[0]
    measured, shown = rows(found), rows(table)
    assert shown
    for case, figures in shown.items():
        assert figures == {name: measured[case][name] for name in figures}, case


def test_every_table_of_figures_is_compared() -> None:
    headed = re.findall(r"^\| case \|", TEXT, re.MULTILINE)
    assert len(FIGURES) == len(headed) > 8


def test_figures_in_the_text_are_those_of_the_report() -> None:
    text = " ".join(TEXT.split())
    for replicas, p50 in re.findall(r"([\d.]+) ms(?: \(p50\))? with (one|three)", text):
        group = f"1 task awaits each record, RF {'1' if p50 == 'one' else '3'}"
        table = REPORT.split(f"\n**{group}**\n\n")[1].split("\n\n")[0]
        assert rows(table)["aiokprod"]["p50 / p99 / p99.9 ms"].startswith(f"{replicas} /")
    (overhead,) = re.findall(r"about (\d+) more, for its handle", text)
    assert f"| a pending record | ≤ 100 B overhead | {overhead} B |" in REPORT


def test_settings_and_metrics_in_the_text_exist() -> None:
    prose = re.sub(r"```.*?```", "", TEXT, flags=re.DOTALL)
    named = set(re.findall(r"`([a-z]+_[a-z_]+)(?:=\w+)?`", prose))
    settings = {field.name for field in dataclasses.fields(ProducerConfig)}
    others = {"send_many", "try_submit"}
    assert named - settings - set(BY_NAME) == others
    assert "compression_ratio" in named


def examples() -> dict[str, Any]:
    names: dict[str, Any] = {}
    for block in BLOCKS:
        exec(compile(block, "tuning.md", "exec"), names)
    return names


@pytest.mark.parametrize("name", ["SERVICE", "PIPELINE", "SAMPLES"])
def test_the_starting_points_deliver_records(name: str) -> None:
    async def main() -> None:
        cluster = FakeCluster(3)
        async with Producer(
            bootstrap_servers=cluster.bootstrap_servers,
            environment=cluster.environment(),
            **examples()[name],
        ) as producer:
            await producer.send("t", b"v")
        assert cluster.all_values("t") == [b"v"]

    run(main, debug=False)


def test_the_producer_with_profiles_delivers_records_of_all_topics() -> None:
    async def main() -> None:
        cluster = FakeCluster(3)
        async with examples()["make_producer"](
            bootstrap_servers=cluster.bootstrap_servers, environment=cluster.environment()
        ) as producer:
            for topic in ("logs.a", "images", "others"):
                await producer.send(topic, b"v")
        assert [cluster.all_values(topic) for topic in ("logs.a", "images")] == [[b"v"], [b"v"]]

    run(main, debug=False)
