from __future__ import annotations

import re

from aiokprod._metrics.counters import NODE_HISTOGRAMS, NodeCounters, TopicCounters
from aiokprod._metrics.definitions import METRICS, names, rows


def test_names_are_distinct_and_say_their_unit() -> None:
    assert len({metric.name for metric in METRICS}) == len(METRICS)
    for metric in METRICS:
        assert re.fullmatch(r"[a-z][a-z_]+", metric.name)
        assert metric.name.endswith("_s") == (metric.unit == "s"), metric.name
        assert ("bytes" in metric.name) == (metric.unit == "bytes"), metric.name
        assert metric.meaning, metric.name
        assert not metric.meaning.endswith("."), metric.name


def test_metrics_by_topic_and_node_are_those_that_are_counted() -> None:
    assert {metric.name for metric in METRICS if metric.topic} == set(TopicCounters.__slots__)
    counted_elsewhere = {"requests_in_flight"}
    by_node = {metric.name for metric in METRICS if metric.node}
    assert by_node == set(NodeCounters.__slots__) | counted_elsewhere
    assert {name for name in by_node if name in names("histogram")} == set(NODE_HISTOGRAMS)


def test_labels_are_of_counters_only() -> None:
    assert {metric.kind for metric in METRICS if metric.label} == {"counter"}
    assert set(names("counter", labelled=True)).isdisjoint(names("counter"))


def test_rows_have_six_cells_each() -> None:
    assert len(rows()) == len(METRICS)
    for row in rows():
        assert row.count("|") == 7, row
