"""Builds the compiled core and the long description. All other metadata is in pyproject.toml."""

import os
import re
import shutil
import sys
import sysconfig
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

PACKAGE = Path("aiokprod")
# Modules that run for every record are optimized for speed (-O2 costs 8 % more instructions, except
# in `batch`). The others are optimized for size, because a wheel has 20 extensions.
PER_RECORD = {"append", "bulk_append", "record_fields", "serialization"}
FOR_SOME_RECORDS = {"batch", "table_appender"}


def flags(module: str) -> list[str]:
    """Return the compiler options for an extension."""
    if "AIOKPROD_CFLAGS" in os.environ:  # the last options, so they override CFLAGS
        return os.environ["AIOKPROD_CFLAGS"].split()
    if sys.platform == "win32":
        return ["/O2"]
    level = "-O3" if module in PER_RECORD else "-O2" if module in FOR_SOME_RECORDS else "-Os"
    # CPython's flags contain -g, and debug information takes a fifth of the compile time. Unwind
    # tables are a tenth of the size, and C code without exceptions does not need them.
    return [level, "-g0", "-fno-asynchronous-unwind-tables", "-fno-unwind-tables"]


# Symbols are a sixth of the extensions' size. AIOKPROD_CFLAGS=-g keeps them for Valgrind and perf.
STRIPPED = {"linux": ["-Wl,-s"], "darwin": ["-Wl,-x"]}
LINK_FLAGS = [] if "AIOKPROD_CFLAGS" in os.environ else STRIPPED.get(sys.platform, [])

# Every module depends on every .pxd. Otherwise an extension built with an older declaration would
# be used without a warning.
DECLARATIONS = [path.as_posix() for path in sorted(PACKAGE.rglob("*.pxd"))]

# Compile the largest files first, so that the last compiler runs alone for the shortest time.
SOURCES = sorted(PACKAGE.rglob("*.pyx"), key=lambda path: (-path.stat().st_size, path))

# Cython compares the times of .pyx and .pxd files only, but changed options also change the C code.
CHANGED = Path("setup.py").stat().st_mtime
GENERATED = [path.with_suffix(".c") for path in SOURCES]
OUTDATED = any(path.exists() and path.stat().st_mtime < CHANGED for path in GENERATED)


def compiler_advice() -> str:
    """Return how to install a C compiler and Python's headers on this system."""
    if sys.platform == "darwin":
        return "xcode-select --install"
    if sys.platform == "win32":
        return 'the "Desktop development with C++" workload of the Visual Studio Build Tools'
    for command, packages in (
        ("apt-get", "gcc libc6-dev python3-dev"),
        ("dnf", "gcc python3-devel"),
        ("apk", "gcc musl-dev python3-dev"),
        ("zypper", "gcc python3-devel"),
        ("pacman", "gcc"),
    ):
        if shutil.which(command):
            return f"{command} {'-S' if command == 'pacman' else 'install'} {packages}".replace(
                "apk install", "apk add"
            )
    return "gcc and Python's headers (python3-dev)"


class BuildExtensions(build_ext):
    """A `build_ext` that reports a missing compiler or header in one line."""

    def build_extensions(self) -> None:
        """Compile the extensions. Exit if the compiler or Python's headers are missing."""
        command = getattr(self.compiler, "compiler_so", None)
        if command and shutil.which(command[0]) is None:
            sys.exit(
                f"aiokprod: there is no C compiler ({command[0]}); install {compiler_advice()}, "
                "or use a platform that has a wheel"
            )
        header = Path(sysconfig.get_path("include"), "Python.h")
        if not header.exists():
            sys.exit(f"aiokprod: {header} is missing; install {compiler_advice()}")
        super().build_extensions()


def long_description() -> str:
    """Return README.md without relative images and links, which package indexes cannot resolve."""
    text = Path("README.md").read_text(encoding="utf-8")
    text = re.sub(r"^!\[[^]]*\]\((?!https?://)[^)]*\)\n+", "", text, flags=re.MULTILINE)
    return re.sub(r"\[([^]]*)\]\((?!https?://)[^)]*\)", r"\1", text)


def cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


setup(
    long_description=long_description(),
    long_description_content_type="text/markdown",
    cmdclass={"build_ext": BuildExtensions},
    ext_modules=cythonize(
        [
            Extension(
                ".".join(path.with_suffix("").parts),
                [path.as_posix()],
                depends=DECLARATIONS,
                extra_compile_args=flags(path.stem),
                extra_link_args=LINK_FLAGS,
            )
            for path in SOURCES
        ],
        force=OUTDATED,
        language_level=3,
        # Generated pickle methods of every class would be a sixth of the C code. RecordMetadata has
        # a handwritten one. Without `binding`, functions are builtin functions, which are smaller
        # and need no Python object. `submit` overrides this, because it is a method of Producer.
        compiler_directives={"auto_pickle": False, "binding": False},
    ),
    options={
        # `build_ext --parallel N` on the command line overrides this default.
        "build_ext": {"parallel": cores()},
        # This mode puts the folder on sys.path, where Spark searches for modules named pyspark_*.
        # Spark does not find modules behind an import hook, which is the default of setuptools.
        "editable_wheel": {"mode": "compat"},
    },
)
