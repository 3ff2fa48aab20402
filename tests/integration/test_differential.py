"""A sample of `make differential`: the same scripts for aiokprod, Java and librdkafka."""

from __future__ import annotations

import asyncio

import uvloop

from tests.differential.campaign import Result, campaign
from tests.differential.catalogue import scripts
from tests.differential.script import SHORT

# One script for each earlier defect.
NAMED = frozenset(
    {
        "last-attempt/56/appended/idempotent",
        "last-attempt/3/appended-then-not",
        "produce/56/always/appended/idempotent",
        "produce/31/once/not/plain",
        "produce/35/once/not/plain",
        "produce/47/once/not/idempotent",
        "odd/leader-minus-1/twice/moved/idempotent",
        "epochs/-1/move-leader/no-hints/idempotent",
        "move/2.8/recreate-elsewhere/no-ids",
        "coordinator/not-in-metadata/twice/tv2",
        "end-txn/15-then-fenced/tv1",
        "end-txn/200/once/done/tv2",
        "abort/add-partitions-15/tv1",
        "break/metadata/correlation/once/not/tv1",
    }
)


def test_sampled_scripts_end_as_with_java_or_as_documented() -> None:
    found: list[Result] = []

    async def main() -> None:
        everything = scripts()
        quick = [script for script in everything if script.settings != SHORT]
        named = [script for script in everything if script.name in NAMED]
        assert {script.name for script in named} == NAMED
        async with campaign(jobs=12, tcp=True) as playing:
            await playing.run([*named, *quick[:: len(quick) // 60]], found.append)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(main(), 280))
    assert len(found) >= 70
    told = [
        "\n".join([result.script.name, *map(str, result.unexplained)])
        + "".join("\n" + evidence.told() for evidence in result.evidence.values())
        for result in found
        if result.unexplained
    ]
    assert not told, "\n\n".join(told)
