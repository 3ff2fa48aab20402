"""Metrics and traces for other systems: Prometheus and OpenTelemetry.

The modules need extras: `aiokprod.observe.prometheus` the extra `prometheus`,
`aiokprod.observe.otel` the extra `otel`. Nothing here is imported by `aiokprod` itself.
"""

from __future__ import annotations

__all__: list[str] = []
