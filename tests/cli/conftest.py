"""Fixtures for the tests of the command line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from aiokprod.testing.fake_cluster import FakeCluster
from aiokprod_cli import main
from tests.cli.served import ServedCluster, served_cluster

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def served() -> Iterator[ServedCluster]:
    """A cluster whose topics have one partition."""
    with served_cluster(FakeCluster(default_partitions=1)) as cluster:
        yield cluster


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs a command in this process. It returns the exit code, standard
    output and standard error."""

    def call(*arguments: str) -> tuple[int, str, str]:
        code = main(arguments)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture
def report(run: Run, served: ServedCluster) -> Callable[..., dict[str, Any]]:
    """Return a function that runs `produce` against the cluster. It returns the JSON report, with
    the exit code in "code"."""

    def call(*arguments: str) -> dict[str, Any]:
        code, out, err = run(
            "produce", "-b", served.servers, "-t", "t", "--report", "json", *arguments
        )
        assert out, err
        return {"code": code, **json.loads(out)}

    return call
