"""Builds the compiled core; everything else is in pyproject.toml."""

import os
import sys
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

PACKAGE = Path("aiokprod")
OPTIMISE = ["/O2"] if sys.platform == "win32" else ["-O3"]
if "AIOKPROD_CFLAGS" in os.environ:  # instead: they come last and win over CFLAGS
    OPTIMISE = os.environ["AIOKPROD_CFLAGS"].split()

# Every .pxd is a dependency of every module: a stale extension beside an edited
# declaration would win silently.
DECLARATIONS = [path.as_posix() for path in sorted(PACKAGE.rglob("*.pxd"))]

setup(
    ext_modules=cythonize(
        [
            Extension(
                ".".join(path.with_suffix("").parts),
                [path.as_posix()],
                depends=DECLARATIONS,
                extra_compile_args=OPTIMISE,
            )
            for path in sorted(PACKAGE.rglob("*.pyx"))
        ],
        language_level=3,
    ),
)
