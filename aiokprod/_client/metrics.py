"""Collects the metrics that `Producer.metrics` returns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aiokprod.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiokprod._client.runtime import Runtime
    from aiokprod.observer import Metrics


def collect_metrics(metrics: Metrics, runtime: Runtime | None, by: Sequence[str]) -> dict[str, Any]:
    """See `Producer.metrics`."""
    if isinstance(by, str) or not {"topic", "node"}.issuperset(by):
        raise ConfigError(f"metrics: by={by!r}: give a sequence of 'topic' and 'node'")
    values = metrics.snapshot()
    if runtime is not None:
        values.update(runtime.gauges())
    if "topic" in by:
        values["topics"] = metrics.by_topic()
    if "node" in by:
        values["nodes"] = metrics.by_node()
        in_flight = {} if runtime is None else runtime.client.in_flight_by_node()
        for node_id, counts in values["nodes"].items():
            counts["requests_in_flight"] = in_flight.get(node_id, 0)
    return values
