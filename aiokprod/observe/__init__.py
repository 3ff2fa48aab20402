"""Metrics and traces for other systems: Prometheus and OpenTelemetry.

The modules need extras: `aiokprod.observe.prometheus` needs the extra `prometheus`,
`aiokprod.observe.otel` needs the extra `otel`. `aiokprod` itself imports none of these modules.
"""

from __future__ import annotations

__all__: list[str] = []
