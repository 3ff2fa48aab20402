"""Builds the compiled core; everything else is in pyproject.toml."""

import os
import sys
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

PACKAGE = Path("aiokprod")
# Debug information (-g is in CPython's own flags) is a fifth of the compiler's time.
FLAGS = ["/O2"] if sys.platform == "win32" else ["-O3", "-g0"]
if "AIOKPROD_CFLAGS" in os.environ:  # instead: they come last and win over CFLAGS
    FLAGS = os.environ["AIOKPROD_CFLAGS"].split()

# Every .pxd is a dependency of every module: a stale extension beside an edited
# declaration would win silently.
DECLARATIONS = [path.as_posix() for path in sorted(PACKAGE.rglob("*.pxd"))]

# The largest first: the last compiler to finish then runs alone for the shortest time.
SOURCES = sorted(PACKAGE.rglob("*.pyx"), key=lambda path: (-path.stat().st_size, path))

# Cython compares the times of .pyx and .pxd only, but other options make other C code.
CHANGED = Path("setup.py").stat().st_mtime
GENERATED = [path.with_suffix(".c") for path in SOURCES]
OUTDATED = any(path.exists() and path.stat().st_mtime < CHANGED for path in GENERATED)


def cores() -> int:
    """The number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


setup(
    ext_modules=cythonize(
        [
            Extension(
                ".".join(path.with_suffix("").parts),
                [path.as_posix()],
                depends=DECLARATIONS,
                extra_compile_args=FLAGS,
            )
            for path in SOURCES
        ],
        force=OUTDATED,
        language_level=3,
        # Only RecordMetadata can be pickled, by a separate method: the generated ones, of every
        # class, would be a sixth of the C code.
        compiler_directives={"auto_pickle": False},
    ),
    options={
        # A default: `build_ext --parallel N` on the command line wins.
        "build_ext": {"parallel": cores()},
        # An editable install puts this folder on sys.path, where Spark searches for modules named
        # pyspark_*. It does not find what an import hook provides, the default of setuptools.
        "editable_wheel": {"mode": "compat"},
    },
)
