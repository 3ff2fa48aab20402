"""The benchmarks' command line.

    python -m benchmarks core                        the promises; takes eight minutes
    python -m benchmarks suite                       all measurements of `make bench`
    python -m benchmarks suite --cluster mock --only fire await
    python -m benchmarks run --scenario await --client aiokafka --cluster kafka --replicas 3
    python -m benchmarks micro                       import, start, idling, memory, append
    python -m benchmarks report                      tables and plots from the last results
    python -m benchmarks.profile                     CPU time by kind of work (perf)
    python -m benchmarks.instructions                instructions per record (valgrind)
    python -m benchmarks.calls                       Python calls of a single send, by module
    python -m benchmarks.bulk                        CPU time of `send_many`, by form of the call
    python -m benchmarks.ways                        CPU time by serializer, partitioner, hook etc.
    python -m benchmarks.transactions                transactions per second

`run --help` lists the options of a single case.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from benchmarks import core, micro, report, single, suite


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    modules = {"core": core, "suite": suite, "run": single, "micro": micro, "report": report}
    for name, module in modules.items():
        command = commands.add_parser(name, help=(module.__doc__ or "").splitlines()[0])
        module.add_options(command)
        command.set_defaults(main=module.main)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a benchmark and return the exit status: 1 if `core` or `--check` found a missed target, 2
    for a wrong option, otherwise 0."""
    chosen = build_parser().parse_args(arguments)
    try:
        status: int = chosen.main(chosen)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return status


if __name__ == "__main__":
    sys.exit(main())
