"""Runs a command and converts errors to exit codes."""

from __future__ import annotations

import asyncio
import json
import sys
from argparse import Namespace
from collections.abc import Coroutine, Iterable
from typing import Any, Final, Protocol, TypeVar

from aiokprod._cli.settings import config_of, read_file
from aiokprod._client.event_loops import new_event_loop
from aiokprod.errors import (
    AuthenticationError,
    AuthorizationError,
    BrokerError,
    ConfigError,
    KafkaError,
    MetadataTimeout,
    NetworkError,
    UnknownTopic,
)
from aiokprod.findings import Finding, Severity
from aiokprod.producer import Producer
from aiokprod_cli import DONE, FAILED, REFUSED, UNREACHABLE, USAGE

T = TypeVar("T")


class _Report(Protocol):
    @property
    def ok(self) -> bool: ...
    def as_dict(self) -> dict[str, Any]: ...
    def lines(self) -> Iterable[str]: ...


_CODES: Final[tuple[tuple[type[KafkaError], int], ...]] = (
    (ConfigError, USAGE),
    (AuthenticationError, REFUSED),
    (AuthorizationError, REFUSED),
    (UnknownTopic, REFUSED),
    (MetadataTimeout, UNREACHABLE),
    (NetworkError, UNREACHABLE),
    (BrokerError, REFUSED),
    (KafkaError, FAILED),
)
"""Exit codes by class of the error. The first matching row applies."""


def run(options: Namespace) -> int:
    """Run a command and return its exit code."""
    calls = {"produce": produce, "perf": perf, "check": check, "config": config}
    try:
        return calls[options.command](options)
    except (KafkaError, KeyboardInterrupt) as error:
        code = failed(error)
        if code == UNREACHABLE:
            print(
                "aiokprod: run aiokprod check with the same -b, -F and -X to find the reason",
                file=sys.stderr,
            )
        return code


def failed(error: KafkaError | KeyboardInterrupt) -> int:
    """Print why a command failed, and return the exit code."""
    if not isinstance(error, KafkaError):
        print("aiokprod: interrupted", file=sys.stderr)
        return FAILED
    print(f"aiokprod: {error}", file=sys.stderr)
    return next(code for cls, code in _CODES if isinstance(error, cls))


def _show(report: _Report, options: Namespace) -> int:
    if options.report == "json":
        print(json.dumps(report.as_dict()))
    else:
        for line in report.lines():
            print(line)
    return DONE if report.ok else FAILED


def _on_loop(main: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)


def produce(options: Namespace) -> int:
    """Run `aiokprod produce`."""
    from aiokprod._cli.first_contact import connected
    from aiokprod._cli.inputs import check as check_inputs
    from aiokprod._cli.produce import headers_of
    from aiokprod._cli.produce import produce as produce_records

    check_inputs(options)
    headers_of(options)
    settings = {"compression_type": options.compression} if options.compression != "none" else {}
    config = config_of(options, **settings)

    async def main() -> _Report:
        return await produce_records(options, await connected(options, config))

    return _show(_on_loop(main()), options)


def perf(options: Namespace) -> int:
    """Run `aiokprod perf`."""
    from aiokprod._cli.first_contact import connected
    from aiokprod._cli.perf import PerfRun, check_options

    check_options(options)
    config = config_of(options)

    async def main() -> _Report:
        async with await connected(options, config) as producer:
            return await PerfRun(options, producer).run()

    return _show(_on_loop(main()), options)


def check(options: Namespace) -> int:
    """Run `aiokprod check`: print one finding per line. Return FAILED if any is an error."""
    settings = config_of(options)

    async def main() -> int:
        producer = Producer[bytes, bytes](settings)
        try:
            findings = await producer.check(options.topics, timeout=options.timeout)
        finally:
            await producer.close(0)
        if options.report == "json":
            print(json.dumps([_finding(finding) for finding in findings]))
        else:
            for finding in findings:
                print(finding)
            if not findings:
                print("nothing found")
        return FAILED if any(finding.severity is Severity.ERROR for finding in findings) else DONE

    return _on_loop(main())


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "code": finding.code,
        "severity": finding.severity.value,
        "subject": finding.subject,
        "text": finding.text,
        "remedy": finding.remedy,
    }


def config(options: Namespace) -> int:
    """Run `aiokprod config`: print the settings as keyword arguments, and remarks to stderr."""
    from aiokprod._cli.translation import translated

    given = read_file(options.file)
    result = translated(options.source, given)
    for text in result.remarks:
        print(f"aiokprod: {text}", file=sys.stderr)
    checked = result.checked(given)
    for text in result.problems:
        print(f"aiokprod: {text}", file=sys.stderr)
    if checked is None:
        return USAGE
    print("Producer(")
    for name in sorted({key.strip().replace(".", "_") for key in result.settings}):
        print(f"    {name}={getattr(checked, name)!r},")
    for name, text in sorted(result.arguments.items()):
        print(f"    {name}={text},")
    print(")")
    return DONE
