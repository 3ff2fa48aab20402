"""`aiokprod produce`: the records that it sends, its report, and how a run ends."""

from __future__ import annotations

import asyncio
import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from aiokprod._cli.inputs import BLOCK, Block, Place
from aiokprod._cli.produce import SHOWN_ERRORS, ProduceRun, place_of
from aiokprod.errors import Code
from aiokprod.producer import Producer
from aiokprod.testing.api import Api
from aiokprod.testing.fake_cluster import FakeCluster
from aiokprod.testing.fake_cluster.control import Gate, Reaction, lose_request
from aiokprod.testing.fake_cluster.framing import Request
from aiokprod_cli import parser
from tests.cli.served import ServedCluster, served_cluster
from tests.cli.signals import signal_when

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


def test_records_without_acknowledgements_are_not_said_to_be_in_the_log(
    report: Report, run: Any, served: ServedCluster, tmp_path: Path
) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"1\n2\n{\n")
    served.call(lambda: served.cluster.control(Api.PRODUCE, lambda _: lose_request()))
    arguments = ("-X", "acks=0", "-X", "enable_idempotence=false", "-f", "jsonl", str(path))
    found = report(*arguments)
    assert (found["acknowledged"], found["unacknowledged"]) == (0, 2)
    assert found["acknowledged_up_to"] is None
    _, out, _ = run("produce", "-b", served.servers, "-t", "t", *arguments)
    first, _, last = out.splitlines()
    assert first.startswith("2 records sent, without acknowledgements (acks=0), in ")
    assert last == "no record of the input is known to be in the log"
    assert served.values("t") == []


def test_files_are_sent_in_order(report: Report, served: ServedCluster, tmp_path: Path) -> None:
    paths = []
    for number in range(3):
        paths.append(tmp_path / str(number))
        paths[-1].write_bytes(b"".join(b"%d-%d\n" % (number, n) for n in range(2_000)))
    found = report(*map(str, paths))
    assert found["acknowledged"] == 6_000
    assert found["acknowledged_up_to"]["record"] == 2_000
    assert served.values("t") == [
        b"%d-%d" % (number, n) for number in range(3) for n in range(2_000)
    ]


def test_raw_files_are_one_record_each(report: Report, served: ServedCluster, lines: Path) -> None:
    assert report("-f", "raw", "-k", "key", str(lines), str(lines))["acknowledged"] == 2
    assert served.records("t") == [(b"key", b"a\nb\n\nc")] * 2


def test_a_raw_file_without_a_key(report: Report, served: ServedCluster, lines: Path) -> None:
    assert report("-f", "raw", str(lines))["acknowledged"] == 1
    assert served.records("t") == [(None, b"a\nb\n\nc")]


def test_every_line_may_have_the_same_key(
    report: Report, served: ServedCluster, lines: Path
) -> None:
    assert report("-k", "key", str(lines))["acknowledged"] == 4
    assert served.records("t") == [(b"key", value) for value in (b"a", b"b", b"", b"c")]


def test_a_line_may_be_longer_than_a_block(
    report: Report, served: ServedCluster, tmp_path: Path
) -> None:
    path = tmp_path / "long"
    path.write_bytes(b"x" * (BLOCK + 1) + b"\nshort\n")
    found = report("-X", "max.request.size=2000000", "-z", "gzip", str(path))
    assert (found["acknowledged"], found["acknowledged_up_to"]["byte"]) == (2, BLOCK + 8)
    assert served.values("t") == [b"x" * (BLOCK + 1), b"short"]


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


def test_json_lines_may_all_be_empty(report: Report, served: ServedCluster, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"\n \n")
    found = report("-f", "jsonl", str(path))
    assert (found["code"], found["acknowledged"], found["acknowledged_up_to"]) == (0, 0, None)


@pytest.mark.parametrize("count", [1_000, 1_001])
def test_csv_is_read_in_blocks(
    report: Report,
    served: ServedCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    count: int,
) -> None:
    monkeypatch.setattr("aiokprod._cli.inputs.ROWS", 1_000)
    path = tmp_path / "x.csv"
    path.write_text("n\n" + "".join(f"{n}\n" for n in range(count)))
    found = report("-f", "csv", "-k", "key", str(path))
    assert found["acknowledged"] == found["acknowledged_up_to"]["record"] == count
    assert served.records("t") == [(b"key", b'{"n": "%d"}' % n) for n in range(count)]


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


def test_parquet_rows_are_records(
    report: Report, served: ServedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aiokprod._cli.inputs.ROWS", 1_000)
    path = tmp_path / "x.parquet"
    count = 2_500
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
        (["-f", "jsonl"], b"{}\n{\n", "line 2: not JSON, column 2: Expecting property name"),
        (["-f", "jsonl"], b'{"a":\t"b" "c"}', "column 11: Expecting ',' delimiter; --keep-going"),
        (["-f", "jsonl"], b'["pay', "line 1: not JSON, column 2: Unterminated string; --keep"),
        (["-f", "jsonl"], b'["\\p"]', "line 1: not JSON, column 3: Invalid \\escape; --keep-going"),
        (["-f", "jsonl"], b'["\xff"]', "line 1: not UTF-8, byte 3 of the line; --keep-going"),
        (["-f", "jsonl"], b"1" * 5_000, "line 1: not checked: a number has too many digits"),
        (["-f", "jsonl"], b"[" * 100_000, "line 1: not checked: objects or arrays are nested too"),
        (["-f", "jsonl", "--key-field", "id"], b"{}\n", "line 1: no field 'id'"),
        (["-f", "jsonl", "--key-field", "id"], b"[]\n", "no field 'id': it is not a JSON object"),
        (["-f", "jsonl", "--key-field", "i"], b'{"i":"\\ud800"}', "field 'i' is not valid Unicode"),
        (["-f", "csv"], b"a,b\n1\n", "line 2: 1 field, the first row has 2; --keep-going skips"),
        (["-f", "csv"], b"a,b\n\n1,2,3\n", "line 3: 3 fields, the first row has 2"),
        (
            ["-f", "csv", "--key-field", "zz"],
            b"a,b\n1,2\n",
            "line 1: no column 'zz': the columns are 'a', 'b'",
        ),
        (["-f", "csv"], b'a\n"x', "unexpected end of data"),
        (["-f", "csv"], b'a\n"x\n\ny"z\n', "lines 2 to 4: ',' expected after '\"'"),
        (["-f", "csv"], b"a\nx\n\xff\n", "line 3: not UTF-8; --keep-going"),
        (["-f", "csv"], b"\xff\nx\n", "line 1: not UTF-8"),
        (["-f", "csv"], b'"a', "line 1: unexpected end of data"),
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


MALFORMED = [
    (["-K", ":"], b"k:%d\n", b"bad\n", b"", "record 1001: no key delimiter ':'"),
    (["-f", "jsonl"], b'{"n":%d}\n', b"{bad\n", b"", "line 1001: not JSON, column 2: "),
    (["-f", "jsonl", "--key-field", "n"], b'{"n":%d}\n', b"{}\n", b"", "line 1001: no field"),
    (["-f", "csv"], b"%d,\xc3\xbc\n", b"bad\n", b"\xef\xbb\xbfn,m\n", "line 1002: 1 field"),
    (["-f", "csv"], b"%d,b\n", b'"bad\n', b"\nn,m\n", "line 1003: unexpected end of data"),
]
"""Options, a good record, a malformed record, the bytes before the first record, and the
problem."""


@pytest.mark.parametrize(("arguments", "good", "bad", "head", "problem"), MALFORMED)
def test_what_is_before_a_malformed_line_is_sent(
    report: Report,
    served: ServedCluster,
    tmp_path: Path,
    arguments: list[str],
    good: bytes,
    bad: bytes,
    head: bytes,
    problem: str,
) -> None:
    before = head + b"".join(good % number for number in range(1_000))
    path = tmp_path / "input"
    path.write_bytes(before + bad)
    found = report(*arguments, str(path))
    assert found["code"] == 1
    assert f"{path}, {problem}" in found["problem"]
    assert found["problem"].endswith("; --keep-going skips such records")
    assert found["acknowledged"] == len(served.values("t")) == 1_000
    assert found["acknowledged_up_to"] == {
        "file": str(path), "record": 1_000, "byte": len(before)
    }  # fmt: skip
    assert found["skipped"] == {"count": 0, "first": []}


@pytest.mark.parametrize(("arguments", "good", "bad", "head", "problem"), MALFORMED[:4])
def test_malformed_lines_are_skipped_and_counted(
    report: Report,
    served: ServedCluster,
    tmp_path: Path,
    arguments: list[str],
    good: bytes,
    bad: bytes,
    head: bytes,
    problem: str,
) -> None:
    before = head + b"".join(good % number for number in range(1_000))
    path = tmp_path / "input"
    path.write_bytes(before + (bad + good % 7) * 20 + bad)
    found = report(*arguments, "--keep-going", str(path))
    assert (found["code"], found["problem"], found["errors"]) == (1, None, [])
    assert found["acknowledged"] == len(served.values("t")) == 1_020
    assert found["acknowledged_up_to"] == {
        "file": str(path), "record": 1_000, "byte": len(before)
    }  # fmt: skip
    assert found["skipped"]["count"] == 21
    first = found["skipped"]["first"]
    assert [each["record"] for each in first] == list(range(1_001, 1_021, 2))
    assert {each["file"] for each in first} == {str(path)}
    assert first[0]["text"].startswith(f"{path}, {problem}")
    assert "bad" not in json.dumps(first)


def test_the_text_report_names_the_first_skipped_lines(
    run: Any, served: ServedCluster, tmp_path: Path
) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"1\n\n2\n" + b"{\n" * 11 + b"3\n")
    code, out, _ = run(
        "produce", "-b", served.servers, "-t", "t", "-f", "jsonl", "--keep-going", str(path)
    )
    assert code == 1
    _, *rest = out.splitlines()
    reason = "not JSON, column 2: Expecting property name enclosed in double quotes"
    assert rest == [
        "11 skipped, not in the log: they are malformed",
        *(f"  {path}, line {number}: {reason}" for number in range(4, 14)),
        "  ...",
        f"everything up to record 3 of {path} is in the log",
    ]
    assert served.values("t") == [b"1", b"2", b"3"]


def test_an_input_of_malformed_lines_only(run: Any, served: ServedCluster, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"{\n{\n")
    command = ["produce", "-b", served.servers, "-t", "t", "-f", "jsonl", str(path)]
    for more in ([], ["--keep-going"]):
        code, out, _ = run(*command, *more)
        assert code == 1
        assert out.splitlines()[-1] == "no record of the input is in the log"


def test_malformed_lines_in_many_blocks(
    report: Report, served: ServedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first malformed line of a file ends a block, in later files too. Blank lines are not
    records."""
    monkeypatch.setattr("aiokprod._cli.inputs.BLOCK", 64)
    good, bad = tmp_path / "good", tmp_path / "bad"
    good.write_bytes(b"1\n" * 100)
    bad.write_bytes(b"\n".join([b"2", b"", b"3", b"{", b"", b"4"] * 50))
    found = report("-f", "jsonl", "--keep-going", str(good), str(bad))
    assert (found["acknowledged"], found["skipped"]["count"]) == (250, 50)
    assert found["acknowledged_up_to"] == {"file": str(bad), "record": 3, "byte": 5}
    assert served.values("t") == [b"1"] * 100 + [b"2", b"3", b"4"] * 50


def test_a_failed_record_after_blank_and_malformed_lines_has_its_number(
    report: Report, served: ServedCluster, tmp_path: Path
) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'\n1\n{\n2\n\n"' + b"x" * 2_000_000 + b'"\n3\n')
    found = report("-f", "jsonl", "--keep-going", str(path))
    assert [error["record"] for error in found["errors"]] == [6]
    assert [each["record"] for each in found["skipped"]["first"]] == [3]
    assert found["acknowledged_up_to"] == {"file": str(path), "record": 2, "byte": 3}


def test_rows_of_csv_end_where_a_block_says(
    report: Report, served: ServedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aiokprod._cli.inputs.ROWS", 2)
    path = tmp_path / "x.csv"
    start = b'\xef\xbb\xbfn\r\n"1\n\xc3\xbc"\r\n\r\n2\r\n'
    path.write_bytes(start + b"x" * 2_000_000 + b"\r\n4\r\n")
    found = report("-f", "csv", str(path))
    assert found["acknowledged_up_to"] == {"file": str(path), "record": 2, "byte": len(start)}


@pytest.mark.parametrize(
    ("row", "where"),
    [
        (b'"1"x,"two\n3,4\n5,6"\n', "lines 2 to 4: ',' expected after '\"'"),
        (b'"1\n3,4\n"x,5\n', "lines 2 to 4: ',' expected after '\"'"),
        (b'"1"x,2\n', "line 2: ',' expected after '\"'"),
        (b'1,"two\n3,4",5\n', "lines 2 to 3: 3 fields"),
    ],
)
def test_lines_of_a_malformed_row_of_csv_are_no_rows(
    report: Report, served: ServedCluster, tmp_path: Path, row: bytes, where: str
) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes(b"a,b\n" + row + b"7,8\n9\n")
    skipped = report("-f", "csv", "--keep-going", str(path))["skipped"]
    assert served.values("t") == [b'{"a": "7", "b": "8"}']
    lines = row.count(b"\n")
    assert [each["text"].removeprefix(f"{path}, ") for each in skipped["first"]] == [
        where + (", the first row has 2" if "fields" in where else ""),
        f"line {lines + 3}: 1 field, the first row has 2",
    ]


def test_a_field_of_csv_may_be_large(
    report: Report, served: ServedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes(b'a\n"' + b"x\n" * 100_000 + b'"\n')
    assert report("-f", "csv", str(path))["acknowledged"] == 1
    monkeypatch.setattr("aiokprod._cli.inputs.FIELD", 1000)
    before = csv.field_size_limit(1000)
    try:
        found = report("-f", "csv", "--keep-going", str(path))
    finally:
        csv.field_size_limit(before)
    assert found["acknowledged"] == 0
    assert found["problem"].endswith(
        "field larger than field limit (1000); the row is not terminated"
    )


def test_csv_with_the_line_breaks_of_old_macs(
    report: Report, served: ServedCluster, tmp_path: Path
) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes(b"n\r1\r2\r")
    assert report("-f", "csv", str(path))["acknowledged_up_to"]["byte"] == 6
    assert served.values("t") == [b'{"n": "1"}', b'{"n": "2"}']


def test_an_empty_csv_file_has_no_records(report: Report, tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes(b"")
    found = report("-f", "csv", "--key-field", "id", str(path))
    assert (found["code"], found["acknowledged"]) == (0, 0)


def test_a_file_that_is_missing_is_a_problem_after_those_before_it(
    report: Report, served: ServedCluster, lines: Path
) -> None:
    found = report(str(lines), "/no/such/file")
    assert found["code"] == 1
    assert found["problem"] == "/no/such/file: No such file or directory"
    assert found["acknowledged"] == len(served.values("t")) == 4


def test_a_file_that_cannot_be_read_is_a_problem(report: Report) -> None:
    found = report("/proc/self/mem")  # the first page of memory is not mapped
    assert (found["code"], found["problem"]) == (1, "/proc/self/mem: Input/output error")


def test_a_call_that_fails_as_a_whole_fails_its_records(
    report: Report, served: ServedCluster, tmp_path: Path
) -> None:
    path = tmp_path / "x.parquet"
    pa.parquet.write_table(pa.table({"payload": [b"1", b"2"]}), path)
    found = report("-f", "parquet", str(path))
    assert (found["code"], found["acknowledged"]) == (1, 0)
    assert found["failed"] == {"not_sent": 2, "rejected": 0, "unknown": 0}
    (error,) = found["errors"]
    assert (error["file"], error["record"], error["outcome"]) == (str(path), 1, "not_sent")
    assert "'value'" in error["text"]


def test_a_partition_that_does_not_exist_fails_every_record(report: Report, lines: Path) -> None:
    found = report("-p", "7", "--keep-going", str(lines))
    assert (found["code"], found["failed"]["not_sent"]) == (1, 4)
    assert [error["record"] for error in found["errors"]] == [1, 2, 3, 4]


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
    # The last line does not end with a newline, so it may be in the first call of `send_many` or in
    # the second.
    assert re.search("^[34] failed, not in the log: the broker rejected them$", out, re.MULTILINE)
    assert f"{lines}, record 1: " in out
    assert "no record of the input is in the log" in out


def test_the_text_report_of_a_success_is_one_line(
    run: Any, served: ServedCluster, lines: Path
) -> None:
    code, out, err = run("produce", "-b", served.servers, "-t", "t", str(lines))
    assert (code, err) == (0, "")
    assert re.fullmatch(
        r"4 records acknowledged in [\d.]+ s \([\d,]+ records/s, 0\.0 MB/s\)\n", out
    )


def test_only_the_first_failed_records_are_described(
    run: Any, served: ServedCluster, tmp_path: Path
) -> None:
    path = tmp_path / "many"
    path.write_bytes(b"x\n" * (SHOWN_ERRORS + 5))
    served.call(lambda: served.cluster.create_topic("t", 1))
    served.call(lambda: served.cluster.fail_produce(("t", 0), Code.INVALID_RECORD))
    _, out, _ = run("produce", "-b", served.servers, "-t", "t", str(path))
    shown = [line for line in out.splitlines() if line.startswith("  ")]
    assert [line.split(":")[0] for line in shown] == [
        *(f"  {path}, record {number}" for number in range(1, SHOWN_ERRORS + 1)),
        "  ...",
    ]


def test_reading_goes_on_after_a_failure_only_if_wanted(
    report: Report, served: ServedCluster, tmp_path: Path
) -> None:
    path = tmp_path / "long"
    path.write_bytes((b"x" * 9_999 + b"\n") * 2_000)  # sent by three calls
    served.call(lambda: served.cluster.create_topic("t", 1))
    served.call(lambda: served.cluster.fail_produce(("t", 0), Code.INVALID_RECORD))
    stopped = report(str(path))
    assert stopped["code"] == 1
    assert "--keep-going" in stopped["problem"]
    assert stopped["acknowledged"] + stopped["failed"]["rejected"] < 2_000
    served.call(lambda: served.cluster.fail_produce(("t", 0), Code.INVALID_RECORD))
    continued = report("--keep-going", str(path))
    assert continued["code"] == 1
    assert continued["problem"] is None
    assert continued["acknowledged"] + continued["failed"]["rejected"] == 2_000


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


def test_parquet_from_standard_input_is_a_wrong_option(run: Any) -> None:
    for files in ([], ["x", "-"]):
        code, _, err = run("produce", "-b", "b:1", "-t", "t", "-f", "parquet", *files)
        assert code == 2
        assert "--format parquet cannot read standard input: name a file" in err


def test_parquet_without_pyarrow_is_a_wrong_option(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    code, _, err = run("produce", "-b", "b:1", "-t", "t", "-f", "parquet", "x")
    assert code == 2
    assert "pip install pyarrow" in err


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


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Replace standard input by a pipe, and yield the descriptor for writing to it."""
    reading, writing = os.pipe()
    with open(reading, "rb", buffering=0) as file:
        monkeypatch.setattr(sys, "stdin", file)
        yield writing
        os.close(writing)


def wait_for_count(served: ServedCluster, count: int) -> Callable[[], bool]:
    """Return a function that returns True if the topic contains at least `count` records."""
    return lambda: (
        served.call(lambda: "t" in served.cluster.topics) and len(served.values("t")) >= count
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run_and_the_report_says_what_is_in_the_log(
    report: Report, served: ServedCluster, pipe: int, number: signal.Signals
) -> None:
    os.write(pipe, b"".join(b"%d\n" % line for line in range(2_000)))
    with signal_when(number, wait_for_count(served, 2_000)):
        found = report()  # the pipe is still open
    assert found["code"] == 1
    assert found["interrupted"] == number.name
    assert found["acknowledged"] == found["acknowledged_up_to"]["record"] == 2_000
    assert served.values("t") == [b"%d" % line for line in range(2_000)]


def test_a_process_that_a_signal_ends_exits_while_it_waits_for_input(
    served: ServedCluster,
) -> None:
    """If a thread held the lock of a buffer at that time, the interpreter would abort."""
    command = [
        sys.executable, "-m", "aiokprod", "produce", "-b", served.servers, "-t", "t",
        "--report", "json",
    ]  # fmt: skip
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdin is not None
    process.stdin.write(b"1\n")
    process.stdin.flush()
    deadline = time.monotonic() + 60
    while not wait_for_count(served, 1)():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 1  # standard input is still open
    out, err = process.communicate()
    assert (json.loads(out)["acknowledged"], err) == (1, b"")


def test_records_that_are_on_their_way_at_a_signal_are_waited_for(
    report: Report, served: ServedCluster, pipe: int
) -> None:
    gate = Gate()
    os.write(pipe, b"1\n2\n")
    served.call(lambda: served.cluster.control(Api.PRODUCE, Reaction(gate=gate)))
    with signal_when(
        signal.SIGTERM,
        lambda: served.call(lambda: bool(gate._held)),
        lambda: served.call(lambda: gate.let_through(Reaction())),
    ):
        found = report()
    assert (found["code"], found["interrupted"], found["acknowledged"]) == (1, "SIGTERM", 2)
    assert found["acknowledged_up_to"]["record"] == 2


def test_a_signal_with_frozen_brokers_ends_the_run_after_the_drain(
    run: Any, served: ServedCluster, pipe: int
) -> None:
    served.call(lambda: served.cluster.create_topic("t", 1))
    served.call(
        lambda: served.cluster.control(
            Api.PRODUCE,
            lambda _: lose_request() if served.cluster.log("t", 0) else None,
        )
    )
    os.write(pipe, b"1\n")

    def second_request() -> bool:
        if served.values("t") and len(written) == 1:
            written.append(os.write(pipe, b"2\n3\n"))
        return served.call(lambda: served.cluster.count(Api.PRODUCE)) == 2

    written = [2]
    began = time.monotonic()
    with signal_when(signal.SIGTERM, second_request):
        code, out, _ = run("produce", "-b", served.servers, "-t", "t", "--drain", "0.1")
    assert time.monotonic() - began < 100  # delivery_timeout_ms is 120 s
    assert code == 1
    first, *rest = out.splitlines()
    assert first.startswith("1 records acknowledged in ")
    assert rest[0] == "2 failed, may be in the log"
    assert rest[1].startswith("  -, record 2: ")
    assert rest[2].startswith("  -, record 3: ")
    assert rest[3:] == ["stopped by SIGTERM", "everything up to record 1 of - is in the log"]


def waiting_for_metadata(lines: Path, end: Callable[[Any, Any], Any]) -> Any:
    """Call `end(run, task)` before any record is appended, and return the report of the run."""

    async def main() -> Any:
        cluster = FakeCluster()
        asked = asyncio.Event()

        def no_answer(_: Request) -> Reaction:
            asked.set()
            return lose_request()

        cluster.control(None, no_answer)
        producer: Producer[bytes, bytes] = Producer(
            bootstrap_servers=cluster.bootstrap_servers, environment=cluster.environment()
        )
        run = ProduceRun(parser().parse_args(["produce", "-t", "t", str(lines)]), producer)
        task = asyncio.ensure_future(run.run(None))
        await asked.wait()
        end(run, task)
        try:
            return await task
        finally:
            await producer.close(0)

    return asyncio.run(main())


def test_a_signal_before_any_record_was_appended(lines: Path) -> None:
    found = waiting_for_metadata(lines, lambda run, _: run.interrupt(signal.SIGTERM))
    assert (found.acknowledged, found.failed, found.complete_to) == (0, {}, None)
    assert list(found.lines())[1:] == [
        "stopped by SIGTERM",
        "no record of the input is in the log",
    ]


def test_a_run_that_is_cancelled_ends_with_the_cancellation(lines: Path) -> None:
    """On Windows, the event loop handles no signals and cancels the run at SIGINT."""
    with pytest.raises(asyncio.CancelledError):
        waiting_for_metadata(lines, lambda _, task: task.cancel())


def test_places_are_found_across_blocks() -> None:
    blocks = [Block(2, Place("a", 2, 10)), Block(3, Place("b", 3, 7))]
    found = [place_of(blocks, position) for position in range(5)]
    assert found == [
        Place("a", 1, None), Place("a", 2, 10), Place("b", 1, None), Place("b", 2, None),
        Place("b", 3, 7),
    ]  # fmt: skip
    with pytest.raises(IndexError):
        place_of(blocks, 5)
