"""Describes errors for text and JSON output, without payloads."""

from __future__ import annotations

from typing import Any

from aiokprod.errors import KafkaError


def describe(error: KafkaError) -> dict[str, Any]:
    """Return class, code, outcome and text of an error."""
    return {
        "error": type(error).__name__,
        "code": error.code.name if error.code else None,
        "outcome": error.outcome.value,
        "text": str(error),
    }
