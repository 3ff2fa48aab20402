"""Looks up known vulnerabilities of all dependencies: build, run time, and extras for users.

The installed versions are looked up, including those of indirect dependencies: first in PyPI's
advisories, then in OSV's for packages without an answer from PyPI. Exit status:

    0  all packages were looked up, and none has a known vulnerability
    1  a package has a known vulnerability
    2  some packages could not be looked up

With --strict (required for releases), every package that could not be looked up is an error.
Without it, unreachable advisories are tolerated for 30 days from the date in `audit.json` next to
this file, so that a CI without access does not stay green forever. The date is that of the last
complete look-up, which --record writes; commit the file afterwards. Before the first look-up, it is
the date of the file's creation. A missing or broken pip-audit is never tolerated.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from packaging.requirements import Requirement

EXTRAS: Final = (
    "snappy",
    "json",
    "gssapi",
    "oidc",
    "spark",
    "prometheus",
    "otel",
    "registry",
    "cloudevents",
)
"""The extras for users. The other extras are for the development of this package."""
SERVICES: Final = ("pypi", "osv")
TOLERATED: Final = datetime.timedelta(days=30)
RECORD: Final = Path(__file__).with_name("audit.json")
_UNREACHABLE: Final = re.compile(
    r"Could not connect|ConnectionError|ConnectTimeout|ReadTimeout|NameResolutionError|ProxyError"
)


class Broken(Exception):
    """pip-audit itself does not work, so that later runs would fail too."""


@dataclass
class Result:
    """The result of the look-up.

    Attributes:
        asked: names of the packages that were looked up.
        bad: identifiers of vulnerabilities by package name and version.
        missing: reason why a package was not looked up, by name.
    """

    asked: set[str] = field(default_factory=set)
    bad: dict[str, list[str]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)


def normal(name: str) -> str:
    """Return the normalized name of a package (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def direct(settings: dict[str, Any]) -> list[Requirement]:
    """Return the requirements in pyproject.toml that users and builds need."""
    project = settings["project"]
    lines = [*project["dependencies"], *settings["build-system"]["requires"]]
    for extra in EXTRAS:
        lines += project["optional-dependencies"][extra]
    return [Requirement(line) for line in lines]


def closure(
    wanted: Iterable[Requirement],
    distribution: Callable[[str], metadata.Distribution] = metadata.distribution,
) -> tuple[dict[str, str], list[str]]:
    """Return the installed version of each requirement and of its dependencies, by name, and the
    names of those that are not installed."""
    pins: dict[str, str] = {}
    absent: list[str] = []
    seen: set[tuple[str, frozenset[str]]] = set()
    rest = [(one, frozenset[str]()) for one in wanted]
    while rest:
        requirement, within = rest.pop()
        if requirement.marker is not None and not any(
            requirement.marker.evaluate({"extra": extra}) for extra in (within or {""})
        ):
            continue
        name = normal(requirement.name)
        extras = frozenset(requirement.extras)
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        try:
            found = distribution(name)
        except metadata.PackageNotFoundError:
            if name not in absent:
                absent.append(name)
            continue
        pins[name] = found.version
        rest += [(Requirement(line), extras | {""}) for line in found.requires or ()]
    return pins, sorted(absent)


def ask(pins: dict[str, str], service: str) -> Result:
    """Look up these versions.

    Raises:
        Broken: pip-audit is not installed, crashed or printed no readable report.
    """
    if importlib.util.find_spec("pip_audit") is None:
        raise Broken("pip-audit is not installed: pip install --editable '.[dev]'")
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(f"{name}=={version}" for name, version in pins.items()))
        file.flush()
        command = ["pip_audit", "--no-deps", "--disable-pip", "-r", file.name, "-s", service]
        command += ["--format", "json", "--progress-spinner", "off", "--timeout", "15"]
        try:
            answer = subprocess.run(
                [sys.executable, "-m", *command], capture_output=True, text=True, timeout=300
            )
        except subprocess.TimeoutExpired:
            return Result(missing=dict.fromkeys(pins, f"{service}: no response within 300 s"))
    return read(pins, service, answer.stdout, answer.stderr)


def read(pins: dict[str, str], service: str, out: str, errors: str) -> Result:
    """Parse the output of pip-audit.

    Raises:
        Broken: the output is not a report, for another reason than unreachable advisories.
    """
    try:
        entries = json.loads(out)["dependencies"]
    except (ValueError, KeyError, TypeError):
        if _UNREACHABLE.search(errors):
            return Result(missing=dict.fromkeys(pins, f"{service} cannot be reached"))
        last = (errors.strip().splitlines() or ["no output"])[-1]
        raise Broken(f"pip-audit -s {service} failed: {last}") from None
    result = Result(missing=dict.fromkeys(pins, f"{service} did not report on it"))
    for entry in entries:
        name = normal(entry["name"])
        if "skip_reason" in entry:
            result.missing[name] = f"{service}: {entry['skip_reason']}"
            continue
        if entry["version"] != pins.get(name):
            raise Broken(f"pip-audit reported {name} {entry['version']}, which was not requested")
        result.asked.add(name)
        result.missing.pop(name)
        if entry["vulns"]:
            ids = [vulnerability["id"] for vulnerability in entry["vulns"]]
            result.bad[f"{name} {entry['version']}"] = ids
    return result


def look_up(pins: dict[str, str], asking: Callable[[dict[str, str], str], Result] = ask) -> Result:
    """Look up the versions in one service after the other, until no package is left."""
    whole = Result(missing=dict.fromkeys(pins, "not asked"))
    for service in SERVICES:
        left = {name: pins[name] for name in whole.missing}
        if not left:
            break
        part = asking(left, service)
        whole.asked |= part.asked
        whole.bad |= part.bad
        whole.missing = part.missing
    return whole


def judge(result: Result, *, strict: bool, today: datetime.date, since: datetime.date) -> int:
    """Print the result and return the exit status.

    Args:
        since: first day of the period `TOLERATED`, in which a failed look-up is tolerated.
    """
    for package, ids in sorted(result.bad.items()):
        print(f"audit: {package} has known vulnerabilities: {', '.join(ids)}")
    for name, why in sorted(result.missing.items()):
        print(f"audit: NOT DONE for {name}: {why}")
    total = len(result.asked) + len(result.missing)
    print(f"audit: {len(result.asked)} of {total} looked up, {len(result.bad)} vulnerable")
    if result.bad:
        return 1
    if not result.missing and result.asked:
        return 0
    until = since + TOLERATED
    if strict or not since <= today <= until:
        print(f"audit: FAILED, not everything looked up (tolerated from {since} to {until})")
        return 2
    print(f"audit: tolerated until {until}; `.ci/audit.py --record` must succeed before")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--strict", action="store_true", help="for releases: tolerate nothing")
    parser.add_argument("--record", action="store_true", help="note a complete look-up")
    options = parser.parse_args()
    settings = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))
    pins, absent = closure(direct(settings))
    today = datetime.datetime.now(datetime.UTC).date()
    try:
        since = datetime.date.fromisoformat(json.loads(RECORD.read_text())["since"])
        result = look_up(pins)
    except (Broken, OSError, ValueError, KeyError) as error:
        print(f"audit: FAILED: {error}")
        return 2
    result.missing |= dict.fromkeys(absent, "not installed here")
    status = judge(result, strict=options.strict, today=today, since=since)
    if options.record and status == 0 and not result.missing:
        RECORD.write_text(json.dumps({"since": today.isoformat()}) + "\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
