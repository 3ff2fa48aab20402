"""docs/tuning.md: its figures are those of the benchmarks, and its settings work."""

from __future__ import annotations

import asyncio
import dataclasses
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from aiokprod import DeliveryTimeout, Producer, ProducerConfig, ProducerSettings
from aiokprod._metrics.definitions import BY_NAME
from aiokprod.testing import FakeCluster, run

DOCS = Path(__file__).parents[1] / "docs"
TEXT = (DOCS / "tuning.md").read_text(encoding="utf-8")
REPORT = (DOCS / "reports" / "benchmarks.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
FIGURES = re.findall(r"<!-- figures: ([^\n]*) -->\n(.*?)<!-- end of figures -->", TEXT, re.DOTALL)


def rows(table: str) -> dict[str, dict[str, str]]:
    """Map each case to its columns and values."""
    lines = [
        [cell.strip() for cell in line.strip("|\n ").split(" | ")] for line in table.splitlines()
    ]
    head, _, *body = [cells for cells in lines if len(cells) > 1 or cells[0].startswith("-")]
    return {cells[0]: dict(zip(head[1:], cells[1:], strict=True)) for cells in body}


@pytest.mark.parametrize(("group", "table"), FIGURES, ids=[group for group, _ in FIGURES])
def test_figures_are_those_of_the_report(group: str, table: str) -> None:
    """After new benchmarks, correct the rows and the conclusions in the text."""
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
        names = examples()
        names["Producer"] = partial(Producer, environment=cluster.environment())
        async with names["make_producer"](cluster.bootstrap_servers) as producer:
            for topic in ("logs.a", "images", "others"):
                await producer.send(topic, b"v")
        assert [cluster.all_values(topic) for topic in ("logs.a", "images")] == [[b"v"], [b"v"]]

    run(main, debug=False)


OUTLASTED = 6.0
"""Seconds of an outage, as on the page."""


async def send_in_outage(settings: ProducerSettings, *, election: bool, seconds: float) -> None:
    """Send a record when an outage begins: either an election of leaders takes this long, or no
    broker responds for this long."""
    cluster = FakeCluster(3, failover_s=seconds if election else 0.1)
    async with Producer(
        bootstrap_servers=cluster.bootstrap_servers, environment=cluster.environment(), **settings
    ) as producer:
        await producer.send("t", b"before", partition=0)
        leader = cluster.leader_of("t", 0).broker_id
        dead = [leader] if election else [broker.broker_id for broker in cluster.living()]
        for number in dead:
            cluster.kill(number)
        if not election:
            loop = asyncio.get_running_loop()
            for number in dead:
                loop.call_later(seconds, cluster.start, number)
        try:
            await producer.send("t", b"during", partition=0)
        finally:
            await asyncio.sleep(10.0)
            if election:
                cluster.start(leader)
    assert cluster.values("t", 0) == [b"before", b"during"]


@pytest.mark.parametrize("election", [True, False], ids=["election", "outage"])
def test_the_service_outlasts_an_outage(election: bool) -> None:
    service: ProducerSettings = examples()["SERVICE"]
    assert f"{OUTLASTED:.0f} seconds" in TEXT.replace("six", "6")
    run(lambda: send_in_outage(service, election=election, seconds=OUTLASTED), debug=False)
    shorter: ProducerSettings = {**service, "delivery_timeout_ms": 3_000}
    with pytest.raises(DeliveryTimeout):
        run(lambda: send_in_outage(shorter, election=election, seconds=OUTLASTED), debug=False)


def test_a_record_fails_with_the_batch_that_it_joins_in_an_outage() -> None:
    """The delivery timeout counts from the creation of the batch, so a call of `send` that joins an
    older batch fails before `delivery_timeout_ms` has passed since its start."""

    async def main() -> None:
        cluster = FakeCluster(3)
        async with Producer(
            bootstrap_servers=cluster.bootstrap_servers,
            environment=cluster.environment(),
            **examples()["SERVICE"],
        ) as producer:
            await producer.send("t", b"before", partition=0)
            for broker in list(cluster.living()):
                cluster.kill(broker.broker_id)
            await producer.submit("t", b"in a request", partition=0)
            await asyncio.sleep(0.5)
            await producer.submit("t", b"waits", partition=0)
            await asyncio.sleep(5.0)
            start = asyncio.get_running_loop().time()
            with pytest.raises(DeliveryTimeout):
                await producer.send("t", b"joins it", partition=0)
            assert asyncio.get_running_loop().time() - start < 4.0

    run(main, debug=False)
