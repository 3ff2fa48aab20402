"""Installs a wheel with each extra alone in an empty environment, and imports the extra's modules.

    python .ci/check_extras.py [--wheel FILE] [EXTRA ...]

Without --wheel, the script first builds a wheel. It needs access to a package index.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

IMPORTS: Final = {
    "": "import aiokprod.blocking, aiokprod.testing, aiokprod.app",
    "snappy": "from aiokprod._wire.compression import codec_for; codec_for('snappy')",
    "json": "import orjson, msgspec; from aiokprod.serializers import JsonSerializer",
    "oidc": "import jwt, cryptography",
    "spark": "import aiokprod.spark, pyspark, pyarrow, numpy; import pyspark_aiokprod_audit",
    "testing": "from aiokprod.testing.mock_cluster import MockCluster as M; M().__enter__();"
    "import testcontainers.core.container",
    "prometheus": "import aiokprod.observe.prometheus",
    "otel": "import aiokprod.observe.otel",
    "compat-aiokafka": "import aiokprod.compat.aiokafka",
    "faststream": "import aiokprod.compat.faststream",
}
"""Statements that must work with each extra. gssapi is left out, because its build needs a system
library."""


def failure(wheel: Path, extra: str) -> str:
    """Install and test an extra. Return the last line of the error, or an empty string on
    success."""
    with tempfile.TemporaryDirectory(prefix="aiokprod-extra-") as folder:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        python = f"{folder}/bin/python"
        target = f"{wheel}[{extra}]" if extra else str(wheel)
        steps = (
            [python, "-m", "pip", "--disable-pip-version-check", "-q", "install", target],
            [python, "-m", "pip", "--disable-pip-version-check", "check"],
            [python, "-c", IMPORTS[extra]],
        )
        for step in steps:
            answer = subprocess.run(step, cwd=folder, capture_output=True, text=True, timeout=900)
            if answer.returncode:
                said = (answer.stderr.strip() or answer.stdout.strip()).splitlines()
                return said[-1] if said else f"status {answer.returncode}"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--wheel", type=Path)
    parser.add_argument("extras", nargs="*")
    options = parser.parse_args()
    if unknown := set(options.extras) - set(IMPORTS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; use some of {', '.join(IMPORTS)}")
    status = 0
    with tempfile.TemporaryDirectory(prefix="aiokprod-wheel-") as folder:
        wheel = options.wheel
        if wheel is None:
            command = [sys.executable, "-m", "pip", "-q", "wheel", "--no-deps", "-w", folder, "."]
            subprocess.run(command, check=True)
            (wheel,) = Path(folder).glob("*.whl")
        for extra in options.extras or IMPORTS:
            reason = failure(wheel.resolve(), extra)
            print(f"{extra or 'no extra'}: {reason or 'works'}", flush=True)
            status |= bool(reason)
    return status


if __name__ == "__main__":
    sys.exit(main())
