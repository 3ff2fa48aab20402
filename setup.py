"""Builds the compiled core and the long description; everything else is in pyproject.toml."""

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
# What runs for every record is optimized for speed (-O2 costs 8 % more instructions, except in
# `batch`), the rest for size: a wheel has 20 extensions.
PER_RECORD = {"append", "bulk_append", "record_fields", "serialization"}
FOR_SOME_RECORDS = {"batch", "table_appender"}


def flags(module: str) -> list[str]:
    """The compiler's options for an extension."""
    if "AIOKPROD_CFLAGS" in os.environ:  # instead: they come last and win over CFLAGS
        return os.environ["AIOKPROD_CFLAGS"].split()
    if sys.platform == "win32":
        return ["/O2"]
    level = "-O3" if module in PER_RECORD else "-O2" if module in FOR_SOME_RECORDS else "-Os"
    # Debug information (-g is in CPython's own flags) is a fifth of the compiler's time; tables for
    # unwinding, which C code without exceptions does not need, are a tenth of the size.
    return [level, "-g0", "-fno-asynchronous-unwind-tables", "-fno-unwind-tables"]


# Symbols are a sixth of the extensions' size. Valgrind and perf need them: AIOKPROD_CFLAGS=-g.
STRIPPED = {"linux": ["-Wl,-s"], "darwin": ["-Wl,-x"]}
LINK_FLAGS = [] if "AIOKPROD_CFLAGS" in os.environ else STRIPPED.get(sys.platform, [])

# Every .pxd is a dependency of every module: a stale extension beside an edited
# declaration would win silently.
DECLARATIONS = [path.as_posix() for path in sorted(PACKAGE.rglob("*.pxd"))]

# The largest first: the last compiler to finish then runs alone for the shortest time.
SOURCES = sorted(PACKAGE.rglob("*.pyx"), key=lambda path: (-path.stat().st_size, path))

# Cython compares the times of .pyx and .pxd only, but other options make other C code.
CHANGED = Path("setup.py").stat().st_mtime
GENERATED = [path.with_suffix(".c") for path in SOURCES]
OUTDATED = any(path.exists() and path.stat().st_mtime < CHANGED for path in GENERATED)


def compiler_advice() -> str:
    """The package that has a C compiler and Python's headers on this system."""
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
    """`build_ext` that names what is missing in one line."""

    def build_extensions(self) -> None:
        """Compile the extensions if there are a compiler and headers."""
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
    """README.md for package indexes, where links to files of the repository lead nowhere."""
    text = Path("README.md").read_text(encoding="utf-8")
    text = re.sub(r"^!\[[^]]*\]\((?!https?://)[^)]*\)\n+", "", text, flags=re.MULTILINE)
    return re.sub(r"\[([^]]*)\]\((?!https?://)[^)]*\)", r"\1", text)


def cores() -> int:
    """The number of cores that this process may use."""
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
        # Only RecordMetadata can be pickled, by a separate method: the generated ones, of every
        # class, would be a sixth of the C code. Functions are builtin functions, which are smaller
        # and need no Python object; `submit`, which becomes a method of Producer, is not.
        compiler_directives={"auto_pickle": False, "binding": False},
    ),
    options={
        # A default: `build_ext --parallel N` on the command line wins.
        "build_ext": {"parallel": cores()},
        # An editable install puts this folder on sys.path, where Spark searches for modules named
        # pyspark_*. It does not find what an import hook provides, the default of setuptools.
        "editable_wheel": {"mode": "compat"},
    },
)
