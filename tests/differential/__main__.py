"""`python -m tests.differential`: scripts played to aiokprod, Java and librdkafka, and compared.

    python -m tests.differential                          every script of the catalogue
    python -m tests.differential --generated 20000 --seed 7   random ones
    python -m tests.differential --only produce-codes     a family, or scripts named like this
    python -m tests.differential --script NAME -v         one script, with all that happened
    python -m tests.differential --detect                 known defects put back, one at a time

What clients did is kept in .cache/differential.journal: a campaign that was interrupted resumes,
and another judge judges what was played before. `--fresh` plays everything again.

Ends with 1 if a rule is broken or a difference is in no row of docs/differences.md.
"""

from __future__ import annotations

import argparse
import fnmatch
import logging
import sys
import time
from collections import Counter
from pathlib import Path

import uvloop

from tests.differential.campaign import Result, campaign
from tests.differential.catalogue import scripts
from tests.differential.clients import CLIENTS, JAVA, OURS
from tests.differential.comparison import second_opinion
from tests.differential.detection import detect
from tests.differential.differences import ROWS, documented
from tests.differential.generator import composed, generated
from tests.differential.journal import PATH, Journal
from tests.differential.script import Script


def main() -> int:
    """Run the scripts that the command line selects."""
    parser = argparse.ArgumentParser(description="the same scripts for three clients")
    parser.add_argument("--only", default="", help="family, or pattern of names")
    parser.add_argument("--generated", type=int, default=0, help="number of random scripts")
    parser.add_argument("--seed", type=int, default=0, help="of the random scripts")
    parser.add_argument("--script", action="append", default=[], help="names of scripts")
    parser.add_argument("--detect", nargs="*", help="put these defects back, or all")
    parser.add_argument("--every", type=int, default=1, help="only every n-th script")
    parser.add_argument("--shard", default="0/1", help="one of n parts of the scripts: 0/n ...")
    parser.add_argument("--jobs", type=int, default=24, help="scripts at a time")
    parser.add_argument("--repeats", type=int, default=3, help="plays of a script with findings")
    parser.add_argument("--most", type=int, default=40, help="findings that are printed")
    parser.add_argument("--clients", default=",".join(CLIENTS), help="aiokprod alone: rules only")
    parser.add_argument("--tcp", action="store_true", help="aiokprod over TCP, in real time")
    parser.add_argument("--fresh", action="store_true", help="forget the journal")
    parser.add_argument("--replay", action="store_true", help="play the chosen scripts anew")
    parser.add_argument(
        "--older", action="store_true", help="count what other sources of aiokprod did before"
    )
    parser.add_argument("--journal", type=Path, default=PATH, help="file of the journal")
    parser.add_argument("-v", "--verbose", action="store_true", help="print what happened")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    if arguments.fresh:
        arguments.journal.unlink(missing_ok=True)
    journal = Journal(arguments.journal, older=arguments.older, replay=arguments.replay)
    if arguments.detect is not None:
        survived = uvloop.run(detect(arguments.detect, arguments.jobs, journal))
        print("survived:", ", ".join(survived) or "none")
        return 1 if survived else 0
    shard, shards = map(int, arguments.shard.split("/"))
    chosen = chosen_scripts(arguments)[shard::shards]
    undocumented = {row.id for row in ROWS} ^ set(documented())
    if undocumented:
        print("only in docs/differences.md or only in differences.py:", sorted(undocumented))
        return 1
    return uvloop.run(run(chosen, arguments, journal))


def chosen_scripts(arguments: argparse.Namespace) -> list[Script]:
    """Return the scripts that the arguments select."""
    if arguments.generated and not arguments.script:
        return list(generated(arguments.generated, arguments.seed))[:: arguments.every]
    found = []
    if arguments.script:
        # Compose only these scripts: no other script of the seed is needed.
        names = [name.split("/") for name in arguments.script if name.startswith("generated/")]
        found = [composed(int(seed), int(number)) for _, seed, number in names]
        if len(names) < len(arguments.script):
            found += [one for one in scripts() if one.name in arguments.script]
        if not found:
            raise SystemExit(f"no script has the name {arguments.script}")
    else:
        found = scripts()
    if arguments.only:
        pattern = arguments.only
        found = [
            one for one in found if one.family == pattern or fnmatch.fnmatch(one.name, pattern)
        ]
    return found[:: arguments.every]


async def run(chosen: list[Script], arguments: argparse.Namespace, journal: Journal) -> int:
    """Play the scripts and print the findings."""
    part = arguments.only or arguments.script or arguments.every > 1 or arguments.generated
    whole = not part and arguments.shard == "0/1" and JAVA in arguments.clients
    bad: list[Result] = []
    unsteady: Counter[str] = Counter()
    opinions: Counter[tuple[str, str]] = Counter()
    done = 0
    started = counted = time.monotonic()
    name = f"{arguments.seed if arguments.generated else 'catalogue'}"
    if arguments.script or arguments.only:
        name = "parts"
    seconds = 0.0

    def finished(result: Result) -> None:
        nonlocal done, counted, seconds
        done += 1
        if result.unexplained:
            bad.append(result)
            if len(bad) <= arguments.most:
                show(result, arguments.verbose)
        elif arguments.verbose:
            show(result, True)
        unsteady.update(f"{one.client} {one.kind}" for one in result.unsteady)
        opinions.update(
            {(row.id, second_opinion(one, result.evidence)) for one, row in result.explained}
        )
        if done % 100 == 0 or done == len(chosen):
            now = time.monotonic()
            seconds = journal.add_seconds(name, now - counted)
            counted = now
        if done % 500 == 0:
            rate = done / (time.monotonic() - started)
            print(f"-- {done} of {len(chosen)} scripts, {rate:.1f} a second", flush=True)

    clients = tuple(arguments.clients.split(","))
    journaled = CLIENTS if not arguments.tcp else tuple(set(CLIENTS) - {OURS})
    playing_them = campaign(
        arguments.jobs, clients, arguments.repeats, journal, journaled, arguments.tcp
    )
    async with playing_them as playing:
        started = counted = time.monotonic()
        matched = await playing.run(chosen, finished)
    print(f"{'':40} scripts; librdkafka ended like aiokprod, like Java")
    for row in ROWS:
        like = [opinions[row.id, client] for client in (OURS, JAVA)]
        print(f"{row.id:40} {matched[row.id]:7} {like[0]:6} {like[1]:6}")
    unused = [row.id for row in ROWS if not (matched[row.id] or row.by_timing)]
    if unused and whole:
        print("rows of docs/differences.md that explained nothing:", ", ".join(unused))
    if unsteady:
        print("seen once and not in repetitions:", dict(unsteady))
    kinds = Counter(f"{one.client} {one.kind}" for result in bad for one in result.unexplained)
    now = time.monotonic() - started
    print(
        f"{done} scripts in {now:.0f} s ({done / now:.1f} a second), in all calls of this kind "
        f"{seconds:.0f} s; {len(bad)} with unexplained findings: {dict(kinds)}"
    )
    return 1 if bad or (whole and unused) else 0


def show(result: Result, verbose: bool) -> None:
    """Print a result."""
    print(result.script.name)
    for finding in result.unexplained:
        print(f"    {finding}")
    if verbose:
        for finding, row in result.explained:
            print(f"    explained by {row.id}: {finding}")
        print(f"  {result.script}")
        for evidence in result.evidence.values():
            print(evidence.told())
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
