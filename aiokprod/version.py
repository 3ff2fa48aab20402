"""The version of the installed package and the kind of build it is."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Final

from aiokprod.hot import core

try:
    __version__ = version("aiokprod")
except PackageNotFoundError:  # run from a source tree without installation
    __version__ = "0.0.0"

COMPILED: Final = not core.__file__.endswith(".py")
"""True if the hot core runs as machine code; it has no other form in an installed package."""
