"""Profiles the CPU time of a client by kind of work.

    python -m benchmarks.profile                       submit, send_many, 64 tasks, 1 task; mock
    python -m benchmarks.profile --only await --client aiokafka --symbols 30

Linux `perf` samples the worker 4 000 times per second during the measurement. The library and the
symbol of a sample determine its kind of work. The share of a kind in the samples is its share of
the CPU time per record. `perf` must be installed and permitted (kernel.perf_event_paranoid ≤ 2;
samples of the kernel need ≤ 1 or root).
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks import catalogue
from benchmarks.brokers import Brokers, running
from benchmarks.case import CLIENTS, CODECS, Case
from benchmarks.runner import in_process, run_case

CASES: Final = {
    "submit": catalogue.FIRE.with_(seconds=2.0, records=3_000_000),
    "send_many": catalogue.BULK.with_(seconds=2.0, records=40_000_000),
    "await": catalogue.AWAIT.with_(seconds=2.0),
    "lone": catalogue.AWAIT.with_(seconds=2.0, tasks=1),
}

# (kind of work, library, symbol). The first matching row applies.
KINDS: Final = tuple(
    (kind, re.compile(library), re.compile(symbol))
    for kind, library, symbol in (
        ("clock", r"\[vdso\]", ""),
        ("system calls", r"\[kernel|\[guest|\[unknown\]", ""),
        ("CRC", r"crc32c", ""),
        ("compress", r"lz4|zstd|libz|snappy|cramjam|^_frame\.|^backend_c\.", ""),
        ("compress", "", r"^(LZ4|ZSTD|HUF|FSE|XXH|deflate|longest_match)"),
        ("copy", r"^libc|^ld-", r"mem(cpy|move)|avx_unaligned"),
        ("memory allocation", r"^libc|^libpython|^python", r"malloc|free|realloc|_int_|arena"),
        (
            "await",
            r"^core\.",
            r"(?i)waiter|callback|__await__|iternext|__next__|wake|await",
        ),
        ("await", r"^callbacks\.", ""),
        ("settle", r"^core\.", r"(?i)acknowledge|metadata|result|done|fail|dealloc"),
        ("append and encode", r"^(append|bulk|core|table|arrow)\.", ""),
        ("encode requests", r"^encoders\.", ""),
        ("decode answers", r"^decoders\.", ""),
        ("histograms", r"^(histogram|stats)", ""),
        ("loop", r"^loop\.|uvloop|_asyncio|^libuv", ""),
        ("libc, threads", r"^libc|^libpthread|^ld-", ""),
        ("interpreter", r"^libpython|^python", ""),
    )
)
OTHER: Final = "other"
_SAMPLE: Final = re.compile(r"^\s*([\d.]+)%\s+(\S+)\s+\[.\]\s+(.*)$")


@dataclass(frozen=True, slots=True)
class Profile:
    """The shares of the CPU time of one case, and the CPU time per record."""

    cpu_us: float
    samples: Mapping[tuple[str, str], float]

    def kinds(self) -> dict[str, float]:
        """Return the share of each kind of work, largest first."""
        shares: Counter[str] = Counter()
        for (library, symbol), share in self.samples.items():
            shares[kind_of(library, symbol)] += share  # type: ignore[assignment]
        return dict(shares.most_common())


def kind_of(library: str, symbol: str) -> str:
    """Return the kind of work of a sample."""
    for kind, of_library, of_symbol in KINDS:
        if of_library.search(library) and of_symbol.search(symbol):
            return kind
    return OTHER


def read_report(output: str) -> dict[tuple[str, str], float]:
    """Parse the share of each (library, symbol) from the output of `perf report`."""
    samples = {}
    for line in output.splitlines():
        found = _SAMPLE.match(line)
        if found:
            samples[found[2], found[3].strip()] = float(found[1]) / 100
    return samples


def profile(brokers: Brokers, case: Case) -> Profile:
    """Run a case under perf. Raises RuntimeError with perf's output if there are no samples."""
    with tempfile.TemporaryDirectory() as scratch:
        data = Path(scratch) / "perf.data"

        def worker(job: Mapping[str, Any]) -> dict[str, Any]:
            return in_process({**job, "profile": str(data)})

        result = run_case(brokers, case, worker=worker)
        done = subprocess.run(
            ["perf", "report", "-i", str(data), "--stdio", "--no-children",
             "-F", "overhead,dso,symbol", "--percent-limit", "0", "-w", "0,60,120"],
            capture_output=True, text=True, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    samples = read_report(done.stdout)
    if not samples:
        raise RuntimeError(f"perf saw nothing:\n{done.stderr[-2000:]}")
    return Profile(result["cpu_us"], samples)


def table(profiles: Mapping[str, Profile]) -> str:
    """Return a Markdown table of µs per record and shares by kind of work, one column per case."""
    kinds: dict[str, None] = {}
    for found in profiles.values():
        kinds |= dict.fromkeys(found.kinds())
    lines = [f"| µs a record | {' | '.join(profiles)} |", f"|---|{'---:|' * len(profiles)}"]
    for kind in kinds:
        cells = []
        for found in profiles.values():
            share = found.kinds().get(kind, 0.0)
            cells.append(f"{share * found.cpu_us:.3f} ({share:.0%})" if share >= 0.005 else "")
        if any(cells):
            lines.append(f"| {kind} | {' | '.join(cells)} |")
    totals = (f"**{found.cpu_us:.3f}**" for found in profiles.values())
    lines.append(f"| **together** | {' | '.join(totals)} |")
    return "\n".join(lines)


def top(found: Profile, count: int) -> str:
    """Return the symbols with the most samples, one per line."""
    ordered = sorted(found.samples.items(), key=lambda entry: -entry[1])[:count]
    return "\n".join(
        f"{share:6.1%}  {kind_of(*where):18} {where[0]:32} {where[1]}" for where, share in ordered
    )


def main(arguments: Iterable[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.profile",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--cluster", choices=("mock", "kafka"), default="mock")
    parser.add_argument("--client", choices=list(CLIENTS), default="aiokprod")
    parser.add_argument("--codec", choices=CODECS, default="none")
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--symbols", type=int, default=0, help="also the hottest symbols")
    chosen = parser.parse_args(None if arguments is None else list(arguments))
    if shutil.which("perf") is None:
        print("error: `perf` is not installed (package linux-perf)", file=sys.stderr)
        return 2
    found = {}
    with running(chosen.cluster) as brokers:
        for name in chosen.only:
            case = CASES[name].with_(
                cluster=chosen.cluster, client=chosen.client, codec=chosen.codec, size=chosen.size
            )
            found[name] = profile(brokers, case)
    print(table(found))
    for name, each in found.items():
        if chosen.symbols:
            print(f"\n{name}\n{top(each, chosen.symbols)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
