"""Builds the sdist and the wheel, and checks their contents.

The build runs without build isolation and with Python's sockets disabled, so that a build that
needs the network fails. All files must be tracked by git, no file of the package may be missing,
the files of the wheel must be equal to those of the sdist, and the hashes in RECORD must be right.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import os
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import zipfile
from pathlib import Path

NO_NETWORK = """
import socket

def refuse(*arguments, **options):
    raise RuntimeError("the build asked for the network")

socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = refuse
socket.create_connection = refuse
"""

GENERATED = ("PKG-INFO", "setup.cfg")
"""Files that setuptools adds to an sdist, in addition to *.egg-info."""

IN_WHEEL = (".py", ".pyi", "py.typed")
SHIPPED = (*IN_WHEEL, ".pyx", ".pxd")

MAX_WHEEL = 1_320_000
"""Maximum size of a wheel for Linux in bytes. DESIGN.md gives the reason."""


def tracked() -> set[str]:
    listed = subprocess.run(["git", "ls-files"], check=True, capture_output=True, text=True)
    return {name for name in listed.stdout.splitlines() if Path(name).exists()}


def build(out: Path) -> tuple[Path, Path]:
    """Build the sdist, and the wheel from the sdist. Return both paths."""
    (out / "sitecustomize.py").write_text(NO_NETWORK)
    environment = {**os.environ, "PYTHONPATH": str(out), "PIP_NO_INDEX": "1"}
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out / "dist"), "."]
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    (sdist,) = (out / "dist").glob("*.tar.gz")
    (wheel,) = (out / "dist").glob("*.whl")
    return sdist, wheel


def check_sdist(sdist: Path, files: set[str]) -> tuple[dict[str, bytes], list[str]]:
    """Return the files of a source distribution, and a line for each problem."""
    wrong, content = [], {}
    with tarfile.open(sdist) as archive:
        for member in archive:
            name = member.name.partition("/")[2]
            if not member.isfile():
                if not member.isdir():
                    wrong.append(f"sdist: {name} is not a regular file")
                continue
            if member.name.startswith(("/", "..")) or "/../" in member.name:
                wrong.append(f"sdist: {member.name} points outside the archive")
            opened = archive.extractfile(member)
            assert opened is not None
            content[name] = opened.read()
    for name, data in content.items():
        if name in GENERATED or ".egg-info/" in name:
            continue
        if name not in files:
            wrong.append(f"sdist: {name} is not tracked by git")
        elif Path(name).read_bytes() != data:
            wrong.append(f"sdist: {name} differs from the work tree")
    needed = {name for name in files if name.startswith("aiokprod/") and name.endswith(SHIPPED)}
    needed |= {"pyproject.toml", "setup.py", "README.md", "LICENSE"} & files
    wrong += [f"sdist: {name} is missing" for name in sorted(needed - set(content))]
    return content, wrong


def check_wheel(wheel: Path, source: dict[str, bytes]) -> list[str]:
    wrong = []
    with zipfile.ZipFile(wheel) as archive:
        content = {entry.filename: archive.read(entry) for entry in archive.infolist()}
    info = next(name.split("/")[0] for name in content if name.endswith(".dist-info/RECORD"))
    compiled = sysconfig.get_config_var("EXT_SUFFIX")
    extensions = {name.removesuffix(".pyx") + compiled for name in source if name.endswith(".pyx")}
    for name, data in content.items():
        if name.startswith(f"{info}/"):
            continue
        if name in extensions:
            if str(Path.cwd()).encode() in data:
                wrong.append(f"wheel: {name} contains the build path")
        elif name not in source:
            wrong.append(f"wheel: {name} is not in the sdist")
        elif data != source[name]:
            wrong.append(f"wheel: {name} differs from the sdist")
        if not name.startswith(
            ("aiokprod/", "aiokprod_cli.py", "pyspark_aiokprod", "pytest_aiokprod")
        ):
            wrong.append(f"wheel: {name} is outside the package")
    needed = {name for name in source if name.startswith("aiokprod/") and name.endswith(IN_WHEEL)}
    wrong += [
        f"wheel: {name} is a source" for name in content if name.endswith((".pyx", ".pxd", ".c"))
    ]
    wrong += [f"wheel: {name} is missing" for name in sorted((needed | extensions) - set(content))]
    for name, digest, _ in csv.reader(content[f"{info}/RECORD"].decode().splitlines()):
        if not digest:
            continue
        found = hashlib.sha256(content[name]).digest()
        if digest != "sha256=" + base64.urlsafe_b64encode(found).decode().rstrip("="):
            wrong.append(f"wheel: RECORD is wrong about {name}")
    return wrong


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="aiokprod-dist-") as folder:
        sdist, wheel = build(Path(folder))
        source, wrong = check_sdist(sdist, tracked())
        wrong += check_wheel(wheel, source)
        print(f"{sdist.name}: {len(source)} files; {wheel.name}: {wheel.stat().st_size} bytes")
        if wheel.stat().st_size > MAX_WHEEL:
            wrong.append(f"wheel: {wheel.stat().st_size} bytes, more than {MAX_WHEEL}")
    for line in wrong:
        print(line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
