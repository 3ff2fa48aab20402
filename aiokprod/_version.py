"""The version of the installed package, and whether its core is compiled."""

from __future__ import annotations

from typing import Final

from aiokprod._core import batch

__version__ = "0.1.0"

COMPILED: Final = not batch.__file__.endswith(".py")
"""True if the core is compiled, as it always is in an installed package."""
