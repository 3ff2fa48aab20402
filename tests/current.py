"""Attributes that a call changes, for mypy."""

from __future__ import annotations

from typing import Any


def current(value: object) -> Any:
    """Return `value`, without what mypy concludes about its type from an earlier assert.

    mypy does not see that a call after the assert changed the attribute, and considers the code
    that follows unreachable.
    """
    return value
