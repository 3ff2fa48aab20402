"""Classification of perf samples by kind of work, and plots of results."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import plots
from benchmarks.case import Case
from benchmarks.instructions import CASES, WORDS
from benchmarks.profile import Profile, kind_of, read_report, table
from benchmarks.summary import Results, Spread, Summary

REPORT = """\
# Overhead  Shared Object                      Symbol
    50.00%  libpython3.11.so.1.0               [.] _PyEval_EvalFrameDefault
    20.00%  [kernel.kallsyms]                  [k] _copy_from_iter
    30.00%  append.cpython-311-x86_64-linux-gnu.so  [.] __pyx_f_append_8Appender_encode

"""


@pytest.mark.parametrize(
    ("library", "symbol", "kind"),
    [
        ("libpython3.11.so.1.0", "_PyEval_EvalFrameDefault", "interpreter"),
        ("python3.12", "_PyEval_EvalFrameDefault", "interpreter"),
        ("[kernel.kallsyms]", "tcp_sendmsg", "system calls"),
        ("[vdso]", "__vdso_clock_gettime", "clock"),
        ("loop.cpython-311-x86_64-linux-gnu.so", "__pyx_f_6uvloop_4loop_4Loop__on_idle", "loop"),
        ("_crc32c.cpython-311-x86_64-linux-gnu.so", "_crc32c_hw_adler", "CRC"),
        ("_block.cpython-311.so", "LZ4_compress_fast", "compress"),
        ("liblz4.so.1", "LZ4_compress_fast", "compress"),
        ("core.cpython-311-x86_64-linux-gnu.so", "BatchCore_acknowledge", "settle"),
        ("core.cpython-311-x86_64-linux-gnu.so", "Delivery_15add_done_callback", "await"),
        ("core.cpython-311-x86_64-linux-gnu.so", "BatchCore_append_record", "append and encode"),
        ("bulk.cpython-311-x86_64-linux-gnu.so", "add", "append and encode"),
        ("encoders.cpython-311-x86_64-linux-gnu.so", "write", "encode requests"),
        ("decoders.cpython-311-x86_64-linux-gnu.so", "read", "decode answers"),
        ("libc.so.6", "__memmove_avx512_unaligned_erms", "copy"),
        ("libc.so.6", "_int_malloc", "memory allocation"),
        ("something.so", "f", "other"),
    ],
)
def test_a_sample_belongs_to_one_kind_of_work(library: str, symbol: str, kind: str) -> None:
    assert kind_of(library, symbol) == kind


def test_shares_become_microseconds_of_a_record() -> None:
    samples = read_report(REPORT)
    assert len(samples) == 3
    found = Profile(0.5, samples)
    assert found.kinds() == {"interpreter": 0.5, "append and encode": 0.3, "system calls": 0.2}
    assert "| interpreter | 0.250 (50%) |" in table({"submit": found})
    assert "| **together** | **0.500** |" in table({"submit": found})


def test_every_counted_case_has_words() -> None:
    assert set(CASES) == set(WORDS)


def test_plots_are_small_files(tmp_path: Path) -> None:
    def summary(group: str, label: str, **fields: object) -> Summary:
        figures = {n: Spread(2e5, 1e5, 3e5) for n in ("rate", "p50_ms", "p99_ms")}
        return Summary(group, label, Case(**fields), 3, figures)  # type: ignore[arg-type]

    results = Results()
    results.add(
        [
            summary("fire", "aiokprod"),
            summary("fire", "aiokafka", client="aiokafka"),
            summary("load", "aiokprod, 1,000/s", rate=1_000),
            summary("load", "aiokprod, 5,000/s", rate=5_000),
            summary("partitions", "aiokprod, keyed, 10 partitions"),
            summary("partitions", "aiokprod, keyed, 1,000 partitions"),
            summary("tasks", "aiokprod, 100 tasks"),
            summary("sizes", "aiokprod, 10,000 B", size=10_000),
        ]
    )
    lines = plots._lines(results.group("mock", "partitions"))
    assert {name: [x for x, _ in points] for name, points in lines.items()} == {
        "aiokprod, keyed": [10, 1_000]
    }
    drawn = plots.draw_all(results, tmp_path / "plots")
    assert [path.name for path in drawn] == ["throughput.png", "load.png", "costs.png"]
    assert all(path.stat().st_size < 100_000 for path in drawn)


def test_nothing_measured_draws_nothing(tmp_path: Path) -> None:
    assert plots.draw_all(Results(), tmp_path / "plots") == []
