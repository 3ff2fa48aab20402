"""Looks up known vulnerabilities of what the package depends on, extras included.

Asks about the installed versions of the direct dependencies only. A vulnerability fails; advisories
that cannot be reached are said aloud and do not, since that is no fault of the code.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

EXTRAS = ("snappy", "gssapi", "oidc", "spark")
"""The extras of users; the others are ours."""


def wanted(project: dict[str, Any]) -> list[str]:
    """Names of the direct dependencies."""
    lines = list(project["dependencies"])
    for extra in EXTRAS:
        lines += project["optional-dependencies"][extra]
    lines += project["build"]
    return sorted({re.split(r"[\s\[<>=!~;]", line)[0] for line in lines})


def main() -> int:
    settings = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))
    project = settings["project"] | {"build": settings["build-system"]["requires"]}
    pins = []
    for name in wanted(project):
        try:
            pins.append(f"{name}=={metadata.version(name)}")
        except metadata.PackageNotFoundError:
            print(f"audit: {name} is not installed here")
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(pins))
        file.flush()
        command = ["pip_audit", "--no-deps", "--disable-pip", "-r", file.name]
        command += ["--format", "json", "--progress-spinner", "off", "--timeout", "15"]
        try:
            answer = subprocess.run(
                [sys.executable, "-m", *command], capture_output=True, text=True, timeout=180
            )
            found = json.loads(answer.stdout)["dependencies"]
        except (subprocess.TimeoutExpired, ValueError, KeyError):
            print("audit: NOT DONE, the advisories cannot be reached from here")
            return 0
    bad = [entry for entry in found if entry.get("vulns")]
    for entry in bad:
        ids = ", ".join(vulnerability["id"] for vulnerability in entry["vulns"])
        print(f"audit: {entry['name']} {entry['version']} has known vulnerabilities: {ids}")
    unknown = [entry["name"] for entry in found if "skip_reason" in entry]
    if unknown:
        print(f"audit: NOT DONE for {', '.join(unknown)}: no advisories to be had from here")
    asked = len(found) - len(unknown)
    print(f"audit: {asked} of {len(pins)} dependencies looked up, {len(bad)} bad")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
