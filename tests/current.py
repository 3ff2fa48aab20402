"""Attributes that a call changes, for mypy."""

from __future__ import annotations

from typing import Any


def current(value: object) -> Any:
    """Return `value`, without what mypy concludes about its type from an earlier assert.

    mypy does not see that a call in between changed the attribute, and takes what follows for
    unreachable.
    """
    return value
