"""Builds the compiled core; everything else is in pyproject.toml."""

import os
import sys
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

HOT = Path("aiokprod/hot")
OPTIMISE = ["/O2"] if sys.platform == "win32" else ["-O3"]
if "AIOKPROD_CFLAGS" in os.environ:  # instead: they come last and win over CFLAGS
    OPTIMISE = os.environ["AIOKPROD_CFLAGS"].split()

# Every .pxd is a dependency of every module: a stale extension beside an edited
# declaration would win silently.
DECLARATIONS = [path.as_posix() for path in sorted(HOT.glob("*.pxd"))]

setup(
    ext_modules=cythonize(
        [
            Extension(
                f"aiokprod.hot.{path.stem}",
                [path.as_posix()],
                depends=DECLARATIONS,
                extra_compile_args=OPTIMISE,
            )
            for path in sorted(HOT.glob("*.pyx"))
        ],
        language_level=3,
    ),
)
