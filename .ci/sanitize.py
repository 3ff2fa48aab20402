"""Runs the compiled core under AddressSanitizer and UndefinedBehaviorSanitizer.

    python .ci/sanitize.py --fuzz 10000000 --interrupts 1000000

The script builds instrumented extensions in a copy of the tree (build/sanitize), so that the normal
extensions do not change. There it runs the tests, the fuzzers and the interrupted calls, in this
order. The exit status is 1 if one of them fails, or if a sanitizer reports an error in any process.

The fuzzers and the interrupted calls write journals in .cache/sanitize. The same command resumes an
interrupted run, as long as aiokprod/_core is unchanged, and prints the totals of all runs.
`--no-tests` skips the tests, which have no journal.

The script needs gcc with libasan and libubsan. Leaks are not reported, because CPython does not
free all memory before exit. tests/arrow/test_libraries.py is left out, because libasan does not
support the allocators and exceptions of polars and duckdb.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
COPY: Final = ROOT / "build" / "sanitize"
REPORTS: Final = COPY / "reports"
JOURNALS: Final = ROOT / ".cache" / "sanitize"
PARTS: Final = ("aiokprod", "tests", "benchmarks", "examples", "docs")
FILES: Final = (
    "conftest.py", "pyproject.toml", "setup.py", "README.md", "DESIGN.md", "LICENSE",
)  # fmt: skip
FLAGS: Final = "-O1 -g1 -fno-omit-frame-pointer -fsanitize=address,undefined " \
    "-fno-sanitize-recover=undefined -fno-wrapv"  # fmt: skip
"""Compiler flags. CPython's flags contain -fwrapv, which would hide signed overflows."""
STAMP: Final = COPY / "flags"
TESTS: Final = ("tests/core", "tests/arrow", "tests/client/test_send_table.py")
ASAN: Final = (
    "detect_leaks=0", "allocator_may_return_null=1", "max_allocation_size_mb=65536",
    "malloc_context_size=8",  # instead of 30 frames per allocation, which saves 10 % of the time
    f"log_path={REPORTS}/asan",
)  # fmt: skip
UBSAN: Final = ("print_stacktrace=1", "halt_on_error=1", f"log_path={REPORTS}/ubsan")
PYTEST: Final = (
    "-m", "pytest", "-q", "-p", "no:cacheprovider", "--ignore=tests/arrow/test_libraries.py",
)  # fmt: skip


def library(name: str) -> str:
    """Return the path of one of gcc's libraries."""
    found = subprocess.run(
        ["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True
    ).stdout.strip()
    if not os.path.isabs(found):
        raise SystemExit(f"sanitize: gcc has no {name}: install its sanitizers (Debian: libasan8)")
    return os.path.realpath(found)


def copy_tree() -> None:
    """Copy the current work tree without built extensions. Unchanged files keep their times, so
    that only edited files are compiled again."""
    for part in PARTS:
        source, target = ROOT / part, COPY / part
        wanted = set()
        for path in source.rglob("*"):
            relative = path.relative_to(source)
            if path.suffix in (".c", ".so", ".pyc") or "__pycache__" in relative.parts:
                continue
            wanted.add(relative)
            if path.is_file():
                (target / relative).parent.mkdir(parents=True, exist_ok=True)
                _copy(path, target / relative)
        for path in target.rglob("*"):
            built = path.suffix in (".c", ".so", ".pyc") or "__pycache__" in path.parts
            if path.is_file() and not built and path.relative_to(target) not in wanted:
                path.unlink()
    for name in FILES:
        _copy(ROOT / name, COPY / name)


def _copy(source: Path, target: Path) -> None:
    if not target.exists() or source.read_bytes() != target.read_bytes():
        shutil.copyfile(source, target)


def build() -> None:
    """Compile the edited extensions with the sanitizers, or all extensions if the flags changed."""
    environment = os.environ | {"AIOKPROD_CFLAGS": FLAGS, "LDFLAGS": "-fsanitize=address,undefined"}
    command = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace", "--parallel", "2"]
    before = STAMP.read_text() if STAMP.exists() else None
    if before != FLAGS:
        if before is not None:
            # The journals belong to code that was compiled with other flags.
            shutil.rmtree(JOURNALS, ignore_errors=True)
        STAMP.unlink(missing_ok=True)
        command.append("--force")
    subprocess.run(command, cwd=COPY, env=environment, check=True)
    STAMP.write_text(FLAGS)


def run(*arguments: str) -> bool:
    """Run Python in the copy. Return True if it exits with 0 and no sanitizer reports an error."""
    started, before = time.monotonic(), processor_time()
    preload = [library("libasan.so"), library("libubsan.so"), library("libstdc++.so")]
    environment = os.environ | {
        "LD_PRELOAD": ":".join(preload),
        "PYTHONPATH": str(COPY),
        "PYTHONMALLOC": "malloc",
        "ASAN_OPTIONS": ":".join(ASAN),
        "UBSAN_OPTIONS": ":".join(UBSAN),
    }
    print("sanitize: python", *arguments, flush=True)
    done = subprocess.run([sys.executable, *arguments], cwd=COPY, env=environment)
    reports = found_reports()
    for report in reports:
        print(f"sanitize: {report.name}\n{report.read_text(errors='replace')[:6000]}")
    print(
        f"sanitize: status {done.returncode}, {len(reports)} reports, "
        f"{time.monotonic() - started:.0f} s, {processor_time() - before:.0f} s of processor time",
        flush=True,
    )
    return done.returncode == 0 and not reports


def processor_time() -> float:
    """Return the CPU time of the child processes that have ended, s."""
    times = os.times()
    return times.children_user + times.children_system


def found_reports() -> list[Path]:
    """Return the reports of errors. Other reports are warnings about allocations that libasan
    rejects; tests request such allocations on purpose."""
    return [
        path
        for path in sorted(REPORTS.iterdir())
        if "ERROR: " in (text := path.read_text(errors="replace")) or "runtime error" in text
    ]


def main() -> int:
    """Run the chosen steps and return the exit status."""
    parser = argparse.ArgumentParser(description="the compiled core under the sanitizers")
    parser.add_argument("--fuzz", type=int, default=10_000_000, help="damaged answers")
    parser.add_argument("--interrupts", type=int, default=1_000_000, help="exceptions in calls")
    parser.add_argument("--tests", nargs="*", default=TESTS, help="paths of tests")
    parser.add_argument("--no-tests", action="store_const", const=(), dest="tests")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes at a time")
    parser.add_argument("--no-build", action="store_true", help="as it was built before")
    arguments = parser.parse_args()
    COPY.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(REPORTS, ignore_errors=True)
    REPORTS.mkdir()
    if not arguments.no_build:
        copy_tree()
        build()
    runs = [(*PYTEST, *arguments.tests)] if arguments.tests else []
    campaigns = (("tests.fuzz", arguments.fuzz), ("tests.interrupts", arguments.interrupts))
    for module, executions in campaigns:
        if executions:
            journal = JOURNALS / f"{module}.jsonl"
            runs.append((
                "-W", "ignore", "-m", module, "--executions", str(executions),
                "--jobs", str(arguments.jobs), "--journal", str(journal),
            ))  # fmt: skip
    good = True
    for run_arguments in runs:
        good = run(*run_arguments) and good
    print(f"sanitize: {'clean' if good else 'NOT clean'}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
