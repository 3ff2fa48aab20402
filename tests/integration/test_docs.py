"""The example for real brokers in docs/testing.md."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from aiokprod.testing.kafka_cluster import KafkaCluster

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"


def test_the_example_for_real_brokers_passes(kafka_cluster: KafkaCluster) -> None:
    section = PAGE.read_text(encoding="utf-8").split("\n## Clusters in other processes\n")[1]
    code = "\n".join(re.findall(r"```python\n(.*?)```", section.split("\n## ")[0], re.DOTALL))
    assert code.count('"orders"') == 5
    names: dict[str, Any] = {}
    exec(compile(code.replace("orders", "docs-orders"), "testing.md", "exec"), names)
    names["test_no_acknowledged_order_is_lost_on_real_brokers"](kafka_cluster)
