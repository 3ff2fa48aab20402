"""Builds the Go programs of benchmarks and tests, with modules from the Go module proxy. Each state
of the source is built once, into the per-user cache that also stores the jars of real brokers."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path
from typing import Final

from aiokprod.testing.kafka_artifacts import MissingTool, cache_root

BUILD_TIMEOUT: Final = 900.0


def executable(source: Path) -> Path:
    """Return the path of the program whose `main.go`, `go.mod` and `go.sum` are in `source`.

    Raises MissingTool without Go, RuntimeError with the compiler's output if the build fails.
    """
    name = source.name
    files = [*sorted(source.glob("*.go")), source / "go.mod", source / "go.sum"]
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]
    target = cache_root().parent / name / f"{name}-{digest}"
    if target.exists():
        return target
    go = shutil.which("go")
    if go is None:
        raise MissingTool(f"{name} needs Go (1.26 or newer), which is not installed")
    target.parent.mkdir(parents=True, exist_ok=True)
    building = target.with_suffix(".building")
    done = subprocess.run(
        [go, "build", "-o", str(building), "."],
        cwd=source,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=BUILD_TIMEOUT,
    )
    if done.returncode:
        raise RuntimeError(f"{name} does not build:\n{done.stdout}{done.stderr}")
    building.rename(target)
    return target
