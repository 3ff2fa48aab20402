"""Argument parser of the command `aiokprod`. `aiokprod._cli` implements the subcommands.

This module is outside the package, because `aiokprod --help` must not import the package.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

DONE, FAILED, USAGE, UNREACHABLE, REFUSED = 0, 1, 2, 3, 4
"""Exit codes, in this order: success, failed records or findings, wrong arguments, no reachable
broker, and a client or topic that a broker refused."""

EPILOG = """\
exit codes: 0 everything was acknowledged; 1 records failed, or findings; 2 wrong arguments;
3 no broker can be reached; 4 the brokers refused the client or the topic
"""


def _connection(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("connection")
    group.add_argument(
        "-b", "--bootstrap-servers", metavar="HOST:PORT", help="brokers, separated by commas"
    )
    group.add_argument(
        "-X", "--set", metavar="NAME=VALUE", action="append", default=[],
        help="a setting of ProducerConfig, in Java's or Python's spelling; may be repeated",
    )  # fmt: skip
    group.add_argument(
        "-F", "--config", metavar="FILE",
        help="settings: a .properties file as for Java, or .json; -b and -X take precedence",
    )  # fmt: skip


def _produce(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "produce", help="send records from files or standard input", epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Sends one record for each line (or JSON document, CSV row, Parquet row).",
    )  # fmt: skip
    parser.add_argument("files", nargs="*", metavar="FILE", help="- or none: standard input")
    parser.add_argument("-t", "--topic", required=True)
    _connection(parser)
    records = parser.add_argument_group("records")
    records.add_argument(
        "-f", "--format", choices=("lines", "raw", "jsonl", "csv", "parquet"), default="lines",
        help="lines (default): a value for each line; raw: a value for each file; jsonl: a JSON "
        "document for each line; csv: a JSON object for each row; parquet: columns key, value, "
        "headers, timestamp, partition",
    )  # fmt: skip
    records.add_argument("-K", "--key-delimiter", metavar="D", help="lines: KEY D VALUE")
    records.add_argument("-k", "--key", help="the key of every record")
    records.add_argument(
        "--key-field", metavar="NAME", help="jsonl, csv: the field or column that is the key"
    )
    records.add_argument(
        "--value-column", metavar="NAME", default="value", help="parquet: default value"
    )
    records.add_argument(
        "-D", "--delimiter", metavar="D", default="\n", help="lines: end of a record"
    )
    records.add_argument(
        "-H", "--header", metavar="NAME=VALUE", action="append", default=[],
        help="a header of every record; may be repeated",
    )  # fmt: skip
    records.add_argument("-p", "--partition", type=int, help="default: by the key, else any")
    records.add_argument("-Z", "--null", action="store_true", help="an empty value is a tombstone")
    records.add_argument(
        "-z", "--compression", choices=("none", "gzip", "snappy", "lz4", "zstd"), default="none"
    )
    run = parser.add_argument_group("run")
    run.add_argument(
        "--keep-going", action="store_true",
        help="skip malformed records, and read on after a record failed; default: stop, so that "
        "no record is sent after it",
    )  # fmt: skip
    run.add_argument(
        "--drain", type=float, default=20.0, metavar="SECONDS",
        help="after SIGINT or SIGTERM: time to wait for records in flight (20)",
    )  # fmt: skip
    run.add_argument(
        "--report", choices=("text", "json"), default="text", help="on standard output at the end"
    )
    run.add_argument("-q", "--quiet", action="store_true", help="no progress")


def _perf(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "perf", help="measure rate and latency", epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Sends records of one size. With --rate a record is due at a fixed time, and "
        "its latency counts from there, even if the producer is late (open loop).",
    )  # fmt: skip
    parser.add_argument("-t", "--topic", required=True)
    _connection(parser)
    parser.add_argument(
        "--rate", type=float, default=0.0, metavar="N", help="records/s; 0: as fast as possible"
    )
    parser.add_argument("--size", type=int, default=100, metavar="BYTES", help="of a value (100)")
    parser.add_argument("--duration", type=float, default=10.0, metavar="SECONDS")
    parser.add_argument("--records", type=int, metavar="N", help="stop after this number")
    parser.add_argument("--report", choices=("text", "json"), default="text")


def _check(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "check", help="look for what keeps records from being delivered", epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Checks servers, TLS, SASL, versions, listeners and topics; sends no record.",
    )  # fmt: skip
    parser.add_argument("topics", nargs="*", metavar="TOPIC")
    _connection(parser)
    parser.add_argument("--timeout", type=float, default=15.0, metavar="SECONDS")
    parser.add_argument("--report", choices=("text", "json"), default="text")


def _config(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "config", help="validate a configuration and translate it to Python", epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Prints the settings as keyword arguments of Producer; secrets are masked.",
    )  # fmt: skip
    parser.add_argument("file", metavar="FILE", help="a .properties or .json file")
    parser.add_argument(
        "--from", dest="source", default="java",
        choices=("java", "librdkafka", "aiokafka", "kafka-python"),
        help="whose names the settings have; java (default) are aiokprod's own too",
    )  # fmt: skip


def parser() -> argparse.ArgumentParser:
    """Return the argument parser with all subcommands."""
    made = argparse.ArgumentParser(
        prog="aiokprod", description="An Apache Kafka producer.", epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    made.add_argument("--version", action="store_true", help="print the version")
    commands = made.add_subparsers(dest="command", metavar="COMMAND")
    for add in (_produce, _perf, _check, _config):
        add(commands)
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    made = parser()
    options = made.parse_args(arguments)
    if options.version:
        from aiokprod._version import __version__

        print(f"aiokprod {__version__}")
        return DONE
    if options.command is None:
        made.print_usage(sys.stderr)
        return USAGE
    from aiokprod._cli import commands

    try:
        return commands.run(options)
    except BrokenPipeError:  # the process that reads the report has exited
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED


if __name__ == "__main__":
    sys.exit(main())
