"""SaslHandshake (API key 17): choose a SASL mechanism.

It has no flexible versions, because Java clients up to 2.4 would negotiate them incorrectly
(KAFKA-9577).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aiokprod._wire.message import Message
from aiokprod._wire.message_schema import int16, string, string_array


@dataclass(frozen=True, slots=True)
class SaslHandshakeRequest(Message):
    """The mechanism that the client requests."""

    api_key = 17
    min_version = 0
    max_version = 1
    flexible_version = None

    mechanism: str = string()


@dataclass(frozen=True, slots=True)
class SaslHandshakeResponse(Message):
    """Result, and the mechanisms that the broker has enabled."""

    api_key = 17
    min_version = 0
    max_version = 1
    flexible_version = None

    error_code: int = int16()  # 0 = none
    mechanisms: Sequence[str] = string_array()
