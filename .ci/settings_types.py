"""Generates `aiokprod/_config/settings.py`, the TypedDict of the settings, from the fields of
`ProducerConfig`.

    python .ci/settings_types.py

`tests/foundation/test_settings.py` fails if the file differs.
"""

from __future__ import annotations

import dataclasses
import re
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
TARGET: Final = ROOT / "aiokprod" / "_config" / "settings.py"

LITERALS: Final = {
    "acks": 'Literal[0, 1, -1, "all", "0", "1", "-1"]',
    "client_dns_lookup": 'Literal["use_all_dns_ips"]',
    "compression_type": 'Literal["none", "gzip", "snappy", "lz4", "zstd"]',
    "metadata_recovery_strategy": 'Literal["rebootstrap", "none"]',
    "sasl_mechanism": (
        'Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI", '
        '"AWS_MSK_IAM"] | None'
    ),
    "security_protocol": 'Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]',
}
"""Settings whose type is narrower than the type of the field. A test compares the type with the
choices of the field."""

HEADER: Final = '''"""The settings of `Producer` as keyword arguments, for type checkers.

Generated from the fields of `ProducerConfig` by `.ci/settings_types.py`; do not edit.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from ssl import SSLContext
from typing import Literal, TypedDict

from aiokprod._security.secret import Credentials, Secret
from aiokprod._security.token_provider import TokenProvider
from aiokprod.topic_profiles import TopicProfile


class ProducerSettings(TypedDict, total=False):
    """The settings of `Producer` and `ProducerConfig`, apart from `bootstrap_servers`.

    Type of a dict of settings, for type checkers to accept ``Producer(..., **settings)``.
    """

'''

FOOTER: Final = '''

class Settings(ProducerSettings):
    """The keyword arguments of `Producer`, without those that are objects; see `ProducerConfig`."""

    bootstrap_servers: str | Sequence[str]
'''


def generated() -> str:
    """Return the text of the module."""
    from aiokprod import ProducerConfig

    lines = []
    for field in dataclasses.fields(ProducerConfig):
        if field.name == "bootstrap_servers":
            continue
        kind = LITERALS.get(field.name, str(field.type))
        # A setting of type Secret also accepts a str.
        kind = re.sub(r"^Secret \| None$", "str | Secret | None", kind)
        lines.append(f"    {field.name}: {kind}\n")
    return HEADER + "".join(lines) + FOOTER


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    TARGET.write_text(generated(), encoding="utf-8")
