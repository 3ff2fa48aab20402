"""docs/cli.md: its commands print what the page shows, and its options are those of the parser."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import aiokprod_cli
from aiokprod._cli.inputs import Place
from aiokprod._cli.produce import ProduceReport
from aiokprod._wire.compression import CODEC_NAMES
from aiokprod.testing.fake_cluster import FakeCluster
from tests.cli.served import served_cluster

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
END = "@@end of a command@@"


def commands() -> Iterator[tuple[str, str]]:
    """Yield the commands of all console blocks in order, each with its output."""
    for block in re.findall(r"```console\n(.*?)```", TEXT, re.DOTALL):
        yield from re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)


def without_measurements(text: str) -> str:
    """Replace rates, times and latencies; keep counts."""
    text = re.sub(r"\d[\d,]*(?= records/s\b)|\d[\d,]*\.\d+", "N", text)
    return re.sub(r'(": )(?:\d+\.\d+|0)(?=,?$)', r"\1N", text, flags=re.MULTILINE)


def test_every_command_prints_what_the_page_says(tmp_path: Path) -> None:
    for name, line in (("aiokprod", f"{sys.executable} -m aiokprod"), ("python", sys.executable)):
        (tmp_path / "bin").mkdir(exist_ok=True)
        program = tmp_path / "bin" / name
        program.write_text(f'#!/bin/sh\nexec {line} "$@"\n')
        program.chmod(0o755)
    shown = list(commands())
    assert len(shown) > 20
    with served_cluster(FakeCluster(default_partitions=1)) as cluster:
        script = "".join(
            f"{{ {command.replace('-b kafka:9092', f'-b {cluster.servers}')}\n}} 2>&1\n"
            f"status=$?; echo '{END}'; (exit $status)\n"
            for command, _ in shown
        )
        done = subprocess.run(
            ["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=600,
            env={
                **os.environ,
                "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
                "PYTHONPATH": str(ROOT),
            },
        )  # fmt: skip
        assert done.stderr == ""
        printed = done.stdout.split(END + "\n")[:-1]
        assert len(printed) == len(shown)
        for (command, expected), found in zip(shown, printed, strict=True):
            assert without_measurements(found) == without_measurements(expected), command
        assert cluster.values("lines") == [b"first", b"second", b"third", b"a", b"c", b"third"]
        assert cluster.records("orders")[:3] == [
            (b"7", b"paid"), (b"8", b"open"), (b"7", b'{"id": 7, "sum": 5}'),
        ]  # fmt: skip
        assert cluster.records("people") == [
            (b"Ada", b'{"name": "Ada", "age": "31"}'), (b"Bob", b'{"name": "Bob", "age": ""}'),
        ]  # fmt: skip


def test_the_report_after_a_signal_is_the_one_of_the_command() -> None:
    (shown,) = re.findall(r"```text\n(.*?)```", TEXT, re.DOTALL)
    report = ProduceReport(
        acknowledged=41_283, bytes=4_540_000, seconds=1.62, interrupted="SIGTERM",
        complete_to=Place("lines.txt", 41_283, None),
    )  # fmt: skip
    assert "\n".join([*report.lines(), ""]) == shown


def test_fields_of_the_report_are_those_of_the_table() -> None:
    table = TEXT.split("### The report\n")[1].split("| field | |")[1].split("\n\n")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == list(ProduceReport().as_dict())


def test_exit_codes_are_those_of_the_command() -> None:
    table = TEXT.split("\n## Exit codes\n")[1].split("\n## ")[0]
    codes = {
        int(code): text for code, text in re.findall(r"^\| (\d) \| (.*) \|$", table, re.MULTILINE)
    }
    expected = {
        aiokprod_cli.DONE: "every record was acknowledged",
        aiokprod_cli.FAILED: "records failed",
        aiokprod_cli.USAGE: "wrong arguments",
        aiokprod_cli.UNREACHABLE: "no broker could be reached",
        aiokprod_cli.REFUSED: "the brokers refused",
    }
    assert set(codes) == set(expected)
    assert all(codes[code].startswith(text) for code, text in expected.items())


def options() -> set[str]:
    """Return the options of all commands, without --help."""
    made = aiokprod_cli.parser()
    (commands,) = (
        action for action in made._actions if isinstance(action, argparse._SubParsersAction)
    )
    parsers = [made, *commands.choices.values()]
    found = {name for one in parsers for action in one._actions for name in action.option_strings}
    return found - {"-h"}


def test_the_page_names_every_option_and_no_other() -> None:
    prose = re.sub(r"```.*?```", "", TEXT, flags=re.DOTALL)
    named = set(
        re.findall(r"(?<![\w-])--?[A-Za-z][\w-]*", " ".join(re.findall(r"`([^`]+)`", prose)))
    )
    assert named - {"-m"} == options()


def test_the_choices_of_compression_are_the_codecs() -> None:
    """`aiokprod_cli` has a separate list, because it must not import the package."""
    (commands,) = (
        action
        for action in aiokprod_cli.parser()._actions
        if isinstance(action, argparse._SubParsersAction)
    )
    found = {
        name: action.choices
        for name, command in commands.choices.items()
        for action in command._actions
        if action.dest == "compression"
    }
    assert found == {"produce": CODEC_NAMES}
    (row,) = (line for line in TEXT.splitlines() if "`--compression`" in line)
    assert re.findall(r"`(\w+)`", row.split("|")[2]) == list(CODEC_NAMES)


def test_every_command_has_a_section() -> None:
    sections = re.findall(r"^## (\w+)$", TEXT, re.MULTILINE)
    (commands,) = (
        action
        for action in aiokprod_cli.parser()._actions
        if isinstance(action, argparse._SubParsersAction)
    )
    assert sections == list(commands.choices)
