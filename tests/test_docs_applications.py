"""docs/applications.md: its service runs, and its copy of the example equals the file."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from aiokprod.testing.mock_cluster import MockCluster

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "applications.md").read_text(encoding="utf-8")


def blocks(heading: str) -> str:
    """Return the Python code of a section."""
    section = TEXT.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return "\n".join(re.findall(r"```python\n(.*?)```", section, re.DOTALL))


def test_the_complete_service_is_that_of_the_examples() -> None:
    """After a change of the example, copy it."""
    copy = TEXT.split("<!-- fastapi_app.py -->\n")[1].split("<!-- end of fastapi_app.py -->")[0]
    file = (ROOT / "examples" / "fastapi_app.py").read_text(encoding="utf-8")
    assert copy == f"```python\n{file}```\n"


@pytest.mark.parametrize(
    ("content", "status", "body"),
    [
        (b'{"id": 7}', 201, {"partition", "offset"}),
        (b'{"blob": "%s"}' % (b"x" * 2_000_000), 413, {"error", "outcome", "may_repeat"}),
        (b"not JSON", 422, {"detail"}),  # FastAPI's own
    ],
    ids=["stored", "too large", "not JSON"],
)
def test_the_service_answers_by_the_table(content: bytes, status: int, body: set[str]) -> None:
    code = blocks("Serving") + "\n" + blocks("Handlers")

    async def main(bootstrap_servers: str) -> httpx.Response:
        names: dict[str, Any] = {}
        program = code.replace("localhost:9092", bootstrap_servers)
        exec(compile(program, "applications.md", "exec", dont_inherit=True), names)
        app = names["app"]
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://app") as client,
        ):
            json = {"content-type": "application/json"}
            return await client.post("/orders/ann", content=content, headers=json)

    with MockCluster() as cluster:
        answer = asyncio.run(main(cluster.bootstrap_servers))
    assert answer.status_code == status
    assert body <= set(answer.json())
