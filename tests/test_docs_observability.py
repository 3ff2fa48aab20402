"""docs/observability.md: its application can be created twice in a process."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import httpx

from aiokprod import Producer
from aiokprod.testing import FakeCluster

TEXT = (Path(__file__).parents[1] / "docs" / "observability.md").read_text(encoding="utf-8")


def test_two_applications_have_their_own_metrics() -> None:
    section = TEXT.split("\n## Several producers or applications in a process\n")[1].split("\n## ")[
        0
    ]
    (code,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(code, "observability.md", "exec", dont_inherit=True), names)

    async def scrape(client_id: str) -> str:
        cluster = FakeCluster(1)
        producer = Producer(
            bootstrap_servers=cluster.bootstrap_servers, environment=cluster.environment(),
            client_id=client_id,
        )  # fmt: skip
        app = names["create_app"](producer)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://app") as client,
        ):
            await producer.send("t", b"v")
            return (await client.get("/metrics")).text

    for client_id in ("first", "second"):
        text = asyncio.run(scrape(client_id))
        assert set(re.findall(r'client_id="(\w+)"', text)) == {client_id}
