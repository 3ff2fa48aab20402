"""`perf`, `check`, `config`, and the behaviour that all commands share."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from aiokprod import __version__, errors
from aiokprod._cli.commands import failed
from aiokprod.errors import Code
from aiokprod.testing.api import Api
from aiokprod.testing.fake_cluster import FakeCluster
from aiokprod.testing.fake_cluster.control import Reaction, refuse
from aiokprod.testing.fake_cluster.framing import Request
from tests.cli.served import ServedCluster, served_cluster
from tests.cli.signals import signal_when

WARM_UP = 100
"""Records that `perf` sends before it measures."""


def test_perf_without_a_rate_sends_a_number_of_records(run: Any, served: ServedCluster) -> None:
    code, out, _ = run(
        "perf", "-b", served.servers, "-t", "t", "--records", "12345", "--size", "10",
        "--report", "json",
    )  # fmt: skip
    found = json.loads(out)
    assert (code, found["records"], found["failed"]) == (0, 12_345, {})
    values = served.values("t")
    assert values.count(bytes(10)) == 12_345
    assert 0 < found["latency_ms"]["p50"] <= found["latency_ms"]["max"]


def test_perf_with_a_rate_keeps_it(run: Any, served: ServedCluster) -> None:
    code, out, _ = run(
        "perf", "-b", served.servers, "-t", "t", "--rate", "2500", "--duration", "0.2",
        "--report", "json",
    )  # fmt: skip
    found = json.loads(out)
    assert (code, found["records"]) == (0, 500)
    assert found["seconds"] >= 0.19


def test_the_last_line_of_perf_is_like_that_of_kafkas_tool(run: Any, served: ServedCluster) -> None:
    _, out, _ = run("perf", "-b", served.servers, "-t", "t", "--records", "10")
    line = out.splitlines()[-1]
    assert line.startswith("10 records sent, ")
    for part in ("records/sec", "MB/sec", "ms avg latency", "ms max latency", "50th", "99.9th."):
        assert part in line


@pytest.mark.parametrize("rate", [(), ("--rate", "100000")], ids=["fast", "paced"])
def test_perf_counts_failed_records_by_outcome(
    run: Any, served: ServedCluster, rate: tuple[str, ...]
) -> None:
    def refuse_after_the_warm_up(_: Request) -> Reaction | None:
        log = served.cluster.log("t", 0)
        return refuse(Code.INVALID_RECORD) if len(log) >= WARM_UP else None

    served.call(lambda: served.cluster.control(Api.PRODUCE, refuse_after_the_warm_up))
    arguments = ("perf", "-b", served.servers, "-t", "t", "--records", "250", *rate)
    code, out, _ = run(*arguments, "--report", "json")
    assert (code, json.loads(out)["failed"]) == (1, {"rejected": 250})
    served.call(lambda: served.cluster.recreate_topic("t", 1))
    code, out, _ = run(*arguments)
    assert code == 1
    assert out.startswith("250 records failed (rejected)\n250 records sent, ")


def test_perf_with_a_rate_counts_records_that_the_producer_refuses(
    run: Any, served: ServedCluster
) -> None:
    code, out, _ = run(
        "perf", "-b", served.servers, "-t", "t", "--rate", "1000", "--records", "3",
        "--size", "2000000", "--report", "json",
    )  # fmt: skip
    found = json.loads(out)
    assert (code, found["records"], found["failed"]) == (1, 3, {"not_sent": 3})


def test_perf_ends_at_its_duration_also_without_a_rate(run: Any, served: ServedCluster) -> None:
    code, out, _ = run("perf", "-b", served.servers, "-t", "t", "--duration", "0.01")
    assert code == 0
    assert int(out.split()[0]) == len(served.values("t")) - WARM_UP > 0


def test_sigint_ends_perf(run: Any, served: ServedCluster) -> None:
    with signal_when(
        signal.SIGINT,
        lambda: served.call(lambda: "t" in served.cluster.topics) and len(served.values("t")) > 99,
    ):
        code, out, err = run("perf", "-b", served.servers, "-t", "t", "--rate", "10",
                             "--duration", "1000")  # fmt: skip
    assert (code, out, err) == (1, "", "aiokprod: interrupted\n")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.ConfigError("x"), 2),
        (errors.MetadataTimeout("x"), 3),
        (errors.DialError("x"), 3),
        (errors.AuthenticationError("x"), 4),
        (errors.AuthorizationError("x"), 4),
        (errors.UnknownTopic("x"), 4),
        (errors.BrokerError("x"), 4),
        (errors.RecordTooLarge("x"), 1),
        (errors.ProducerClosed("x"), 1),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_exit_code_says_who_refused(
    error: errors.KafkaError, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert failed(error) == code
    assert capsys.readouterr().err == f"aiokprod: {error}\n"


@pytest.mark.parametrize("wrong", [("--rate", "-1"), ("--duration", "0"), ("--size", "-1")])
def test_perf_refuses_impossible_numbers(
    run: Any, served: ServedCluster, wrong: tuple[str, str]
) -> None:
    code, _, err = run("perf", "-b", served.servers, "-t", "t", *wrong)
    assert code == 2
    assert "must be 0 or more" in err


def test_check_lists_findings(run: Any, served: ServedCluster) -> None:
    code, out, _ = run("check", "-b", served.servers, "--report", "json", "missing.topic")
    findings = json.loads(out)
    assert code in (0, 1)
    assert all(
        set(finding) == {"code", "severity", "subject", "text", "remedy"} for finding in findings
    )
    assert any(finding["subject"] == "topic missing.topic" for finding in findings)


def test_check_without_findings_says_so(run: Any) -> None:
    cluster = FakeCluster()
    cluster.create_topic("t", 3)
    with served_cluster(cluster) as served:
        assert run("check", "-b", served.servers, "t") == (0, "nothing found\n", "")


def test_check_of_unreachable_brokers_fails(run: Any) -> None:
    code, out, _ = run("check", "-b", "127.0.0.1:1", "--timeout", "2")
    assert code == 1
    assert out.startswith("error: ")
    assert "127.0.0.1:1" in out


def test_config_prints_settings_as_python_with_secrets_masked(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text(
        "# comment\n"
        "bootstrap.servers = b:9092\n"
        "! comment\n"
        "security.protocol: SASL_SSL\n"
        "sasl.mechanism=SCRAM-SHA-512\n"
        "sasl.username=u\n"
        "sasl.password=hunter2\n"
        "linger\\\n"
        ".ms=7\n"
    )
    code, out, _ = run("config", str(path))
    assert code == 0
    assert "    linger_ms=7,\n" in out
    assert "    security_protocol='SASL_SSL',\n" in out
    assert "hunter2" not in out


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.properties", "linger\n", "line 1: write name=value"),
        ("x.json", "{", "line 1: not JSON"),
        ("x.json", "[]", "must be a JSON object"),
        ("x.properties", "bootstrap.servers=b:1\nacks=7\n", "acks="),
        ("x.properties", "bootstrap.servers=b:1\nlingerms=7\n", "did you mean"),
    ],
)
def test_config_names_what_is_wrong(
    run: Any, tmp_path: Path, name: str, content: str, message: str
) -> None:
    path = tmp_path / name
    path.write_text(content)
    code, _, err = run("config", str(path))
    assert code == 2
    assert message in err


def test_a_file_of_settings_gives_way_to_options(
    run: Any, served: ServedCluster, tmp_path: Path
) -> None:
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"bootstrap.servers": "127.0.0.1:1", "linger.ms": 3}))
    code, out, err = run(
        "perf", "-F", str(path), "-b", served.servers, "-X", "linger_ms=0", "-t", "t",
        "--records", "1",
    )  # fmt: skip
    assert code == 0, err
    assert out.startswith("1 records sent")


def test_a_missing_file_of_settings_is_a_wrong_argument(run: Any) -> None:
    code, _, err = run("perf", "-F", "/no/such", "-t", "t")
    assert code == 2
    assert "/no/such: No such file or directory" in err


def test_version_and_usage(run: Any) -> None:
    assert run("--version") == (0, f"aiokprod {__version__}\n", "")
    code, _, err = run()
    assert code == 2
    assert err.startswith("usage: aiokprod")


@pytest.mark.parametrize("command", ["produce", "perf", "check", "config"])
def test_every_command_explains_itself(
    command: str, run: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        run(command, "--help")
    assert ended.value.code == 0
    assert "exit codes:" in capsys.readouterr().out


def test_help_does_not_import_the_package() -> None:
    program = (
        "import sys, aiokprod_cli\n"
        "try:\n    aiokprod_cli.main(['--help'])\n"
        "except SystemExit:\n    pass\n"
        "assert not [name for name in sys.modules if name.split('.')[0] == 'aiokprod']\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
