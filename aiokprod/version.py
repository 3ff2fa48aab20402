"""The version of the installed package and the kind of build it is."""

from __future__ import annotations

from typing import Final

from aiokprod.hot import core

__version__ = "0.1.0"

COMPILED: Final = not core.__file__.endswith(".py")
"""True if the hot core runs as machine code; it has no other form in an installed package."""
