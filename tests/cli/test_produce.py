"""`aiokprod produce`: what is sent, what is reported, and how it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from aiokprod._cli.inputs import Block, Place
from aiokprod._cli.produce import place_of
from aiokprod.errors import Code
from aiokprod.testing.fake_cluster import FakeCluster
from tests.cli.served import ServedCluster, served_cluster

Report = Callable[..., dict[str, Any]]


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "lines"
    path.write_bytes(b"a\nb\n\nc")
    return path


def test_every_line_is_a_record(report: Report, served: ServedCluster, lines: Path) -> None:
    found = report(str(lines))
    assert found["code"] == 0
    assert found["acknowledged"] == 4
    assert found["acknowledged_up_to"] == {"file": str(lines), "record": 4, "byte": 6}
    assert served.values("t") == [b"a", b"b", b"", b"c"]


def test_empty_values_may_be_tombstones(report: Report, served: ServedCluster, lines: Path) -> None:
    assert report("-Z", str(lines))["code"] == 0
    assert served.values("t") == [b"a", b"b", None, b"c"]


def test_keys_headers_partition_and_codec(
    report: Report, served: ServedCluster, tmp_path: Path
) -> None:
    path = tmp_path / "keyed"
    path.write_bytes(b"k1::v1;k2::v2")
    found = report(
        "-K", "::", "-D", ";", "-H", "h=1", "-H", "i=", "-p", "0", "-z", "gzip", str(path)
    )
    assert found["code"] == 0
    first, second = served.call(lambda: served.cluster.log("t", 0))
    assert [(first.key, first.value), (second.key, second.value)] == [
        (b"k1", b"v1"),
        (b"k2", b"v2"),
    ]
    assert list(first.headers) == [("h", b"1"), ("i", b"")]


def test_files_are_sent_in_order(report: Report, served: ServedCluster, tmp_path: Path) -> None:
    paths = []
    for number in range(3):
        paths.append(tmp_path / str(number))
        paths[-1].write_bytes(b"".join(b"%d-%d\n" % (number, n) for n in range(20_000)))
    found = report(*map(str, paths))
    assert found["acknowledged"] == 60_000
    assert found["acknowledged_up_to"]["record"] == 20_000
    assert served.values("t") == [
        b"%d-%d" % (number, n) for number in range(3) for n in range(20_000)
    ]


def test_raw_files_are_one_record_each(report: Report, served: ServedCluster, lines: Path) -> None:
    assert report("-f", "raw", "-k", "key", str(lines), str(lines))["acknowledged"] == 2
    assert served.records("t") == [(b"key", b"a\nb\n\nc")] * 2


def test_json_lines_are_checked_and_sent_as_they_are(
    report: Report, served: ServedCluster, tmp_path: Path
) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"id": 1, "v":  2}\r\n\n{"id": "x"}\n{"id": null}\n')
    assert report("-f", "jsonl", "--key-field", "id", str(path))["acknowledged"] == 3
    assert served.records("t") == [
        (b"1", b'{"id": 1, "v":  2}'),
        (b"x", b'{"id": "x"}'),
        (None, b'{"id": null}'),
    ]


def test_csv_rows_become_json_objects(
    report: Report, served: ServedCluster, tmp_path: Path
) -> None:
    path = tmp_path / "x.csv"
    path.write_text('id,name\n1,"a, b"\n2,ü\n', encoding="utf-8")
    assert report("-f", "csv", "--key-field", "id", str(path))["acknowledged"] == 2
    assert [(key, json.loads(value or b"")) for key, value in served.records("t")] == [
        (b"1", {"id": "1", "name": "a, b"}),
        (b"2", {"id": "2", "name": "ü"}),
    ]


def test_parquet_rows_are_records(report: Report, served: ServedCluster, tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    count = 25_000
    table = pa.table({"key": [b"k"] * count, "payload": [b"%d" % n for n in range(count)]})
    pa.parquet.write_table(table, path)
    found = report("-f", "parquet", "--value-column", "payload", str(path))
    assert found["acknowledged"] == count
    assert found["acknowledged_up_to"] == {"file": str(path), "record": count, "byte": None}
    assert served.records("t") == [(b"k", b"%d" % n) for n in range(count)]


@pytest.mark.parametrize(
    ("arguments", "content", "problem"),
    [
        (["-K", ":"], b"a:1\nb\n", "record 2: no key delimiter ':'"),
        (["-f", "jsonl"], b"{}\n{\n", "line 2: not JSON"),
        (["-f", "jsonl", "--key-field", "id"], b"{}\n", "line 1: no field 'id'"),
        (["-f", "csv"], b"a,b\n1\n", "line 2: another number of fields"),
        (["-f", "csv"], b'a\n"x', "unexpected end of data"),
        (["-f", "parquet"], b"no", "Parquet"),
    ],
)
def test_input_in_another_format_is_a_problem_with_its_place(
    report: Report, tmp_path: Path, arguments: list[str], content: bytes, problem: str
) -> None:
    path = tmp_path / "input"
    path.write_bytes(content)
    found = report(*arguments, str(path))
    assert found["code"] == 1
    assert problem in found["problem"]
    assert str(path) in found["problem"]


def test_a_file_that_is_missing_is_a_problem_after_those_before_it(
    report: Report, served: ServedCluster, lines: Path
) -> None:
    found = report(str(lines), "/no/such/file")
    assert found["code"] == 1
    assert found["problem"] == "/no/such/file: No such file or directory"
    assert found["acknowledged"] == len(served.values("t")) == 4


def test_failed_records_are_named_by_their_number(
    report: Report, served: ServedCluster, tmp_path: Path
) -> None:
    path = tmp_path / "large"
    path.write_bytes(b"ok\n" + b"x" * 2_000_000 + b"\nalso\n")
    found = report(str(path))
    assert found["code"] == 1
    assert found["failed"] == {"not_sent": 1, "rejected": 0, "unknown": 0}
    (error,) = found["errors"]
    assert (error["record"], error["error"], error["outcome"]) == (2, "RecordTooLarge", "not_sent")
    assert found["acknowledged_up_to"]["record"] == 1
    assert b"also" in served.values("t")


def test_the_text_report_says_what_is_in_the_log(
    run: Any, served: ServedCluster, lines: Path
) -> None:
    served.call(lambda: served.cluster.create_topic("t", 1))
    served.call(lambda: served.cluster.fail_produce(("t", 0), Code.INVALID_RECORD))
    code, out, _ = run("produce", "-b", served.servers, "-t", "t", str(lines))
    assert code == 1
    # The last line, which has no end, may be in the first call or not.
    assert re.search("^[34] failed, not in the log: the broker rejected them$", out, re.MULTILINE)
    assert f"{lines}, record 1: " in out
    assert "no prefix of the input is known to be in the log" in out


def test_reading_goes_on_after_a_failure_only_if_wanted(
    report: Report, served: ServedCluster, tmp_path: Path
) -> None:
    path = tmp_path / "long"
    path.write_bytes((b"x" * 999 + b"\n") * 20_000)  # three calls
    served.call(lambda: served.cluster.create_topic("t", 1))
    served.call(lambda: served.cluster.fail_produce(("t", 0), Code.INVALID_RECORD))
    stopped = report(str(path))
    assert stopped["code"] == 1
    assert "--keep-going" in stopped["problem"]
    assert stopped["acknowledged"] + stopped["failed"]["rejected"] < 20_000
    served.call(lambda: served.cluster.fail_produce(("t", 0), Code.INVALID_RECORD))
    continued = report("--keep-going", str(path))
    assert continued["code"] == 1
    assert continued["problem"] is None
    assert continued["acknowledged"] + continued["failed"]["rejected"] == 20_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-H", "x"], "-H x: write NAME=VALUE"),
        (["-f", "csv", "-K", ":"], "--key-delimiter applies to --format lines only"),
        (["--key-field", "x"], "--key-field applies to --format jsonl and csv only"),
        (["-k", "x", "-K", ":"], "--key is the key of every record"),
        (["-D", ""], "--delimiter is empty"),
        (["-K", ""], "--key-delimiter is empty"),
        (["-X", "linger"], "-X linger: write NAME=VALUE"),
        (["-X", "lingerms=3"], "did you mean"),
        (["-X", "linger.ms=x"], "linger_ms='x'"),
    ],
)
def test_wrong_options_are_reported_before_anything_is_sent(
    run: Any, served: ServedCluster, arguments: list[str], message: str
) -> None:
    code, out, err = run("produce", "-b", served.servers, "-t", "t", *arguments, "/dev/null")
    assert (code, out) == (2, "")
    assert message in err


def test_without_brokers_it_is_a_wrong_argument(run: Any) -> None:
    code, _, err = run("produce", "-t", "t", "/dev/null")
    assert code == 2
    assert "no brokers: give -b HOST:PORT" in err


def test_brokers_that_cannot_be_reached_are_exit_code_3(run: Any) -> None:
    code, _, err = run(
        "produce", "-b", "127.0.0.1:1", "-X", "max.block.ms=300", "-t", "t", "/dev/null"
    )
    assert code == 3
    assert "127.0.0.1:1" in err


def test_a_topic_that_brokers_refuse_is_exit_code_4(run: Any) -> None:
    cluster = FakeCluster()
    cluster.denied_topics.add("t")
    with served_cluster(cluster) as served:
        code, _, err = run("produce", "-b", served.servers, "-t", "t", "/dev/null")
    assert code == 4
    assert "TOPIC_AUTHORIZATION_FAILED" in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run_and_the_report_says_what_is_in_the_log(
    served: ServedCluster, number: signal.Signals
) -> None:
    command = [
        sys.executable, "-m", "aiokprod", "produce", "-b", served.servers, "-t", "t",
        "--report", "json",
    ]  # fmt: skip
    reading, writing = os.pipe()
    process = subprocess.Popen(command, stdin=reading, stdout=subprocess.PIPE, text=True)
    os.close(reading)
    with open(writing, "wb") as pipe:
        for line in range(50_000):
            pipe.write(b"%d\n" % line)
        pipe.flush()
        deadline = time.monotonic() + 20
        while len(served.call(lambda: served.cluster.topics) and served.values("t")) < 1_000:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(number)  # the pipe is still open
        out, _ = process.communicate(timeout=20)
    found = json.loads(out)
    assert process.returncode == 1
    assert found["interrupted"] == number.name
    values = served.values("t")
    assert found["acknowledged"] == found["acknowledged_up_to"]["record"] == len(values)
    assert values == [b"%d" % line for line in range(len(values))]


def test_a_signal_with_frozen_brokers_ends_the_run_after_the_drain(served: ServedCluster) -> None:
    command = [
        sys.executable, "-m", "aiokprod", "produce", "-b", served.servers, "-t", "t",
        "--report", "json", "--drain", "0.5",
    ]  # fmt: skip
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    assert process.stdin is not None
    process.stdin.write("1\n")
    deadline = time.monotonic() + 20
    while not (served.call(lambda: served.cluster.topics) and served.values("t")):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    for broker in (1, 2, 3):
        served.call(lambda number=broker: served.cluster.pause(number))  # type: ignore[misc]
    process.stdin.write("2\n3\n")
    time.sleep(0.5)
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=20)
    assert time.monotonic() - began < 5
    found = json.loads(out)
    assert found["acknowledged"] == 1
    assert sum(found["failed"].values()) == 2
    assert found["acknowledged_up_to"]["record"] == 1
    for broker in (1, 2, 3):
        served.call(lambda number=broker: served.cluster.resume(number))  # type: ignore[misc]


def test_places_are_found_across_blocks() -> None:
    blocks = [Block(2, Place("a", 2, 10)), Block(3, Place("b", 3, 7))]
    found = [place_of(blocks, position) for position in range(5)]
    assert found == [
        Place("a", 1, None), Place("a", 2, 10), Place("b", 1, None), Place("b", 2, None),
        Place("b", 3, 7),
    ]  # fmt: skip
    with pytest.raises(IndexError):
        place_of(blocks, 5)
