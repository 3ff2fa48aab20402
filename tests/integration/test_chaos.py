"""A short version of `make chaos`: its tools work, and every promise holds under two faults."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.cluster import ChaosCluster
from tests.chaos.run import play

RATE = 3_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("chaos")


@pytest.mark.slow
def test_chaos_smoke_leader_killed_and_connections_reset(folder: Path) -> None:
    async def scenario() -> list[dict[str, Any]]:
        async with ChaosCluster() as cluster:
            results = await play(cluster, [("resets", 0)], RATE, folder)
            return results + await play(cluster, [("leader-killed", 1)], RATE, folder)

    results = asyncio.run(scenario())
    assert len(results) == 6
    for result in results:
        print(result)
        assert not result["wrong"], result
        verdict = result["verdict"]
        least = 5 * result["offered_rate"] / (4 if result["workload"] == "transactional" else 1)
        assert verdict["acknowledged"] + verdict["aborted"] == verdict["records"] > least
        assert result["metadata_most_per_second"] <= 20
    assert all(result["series"]["connections_closed"] > 3 for result in results[:3]), "not reset"
    assert all(result["unavailable_s"] > 1 for result in results[3:]), "nobody was killed"
