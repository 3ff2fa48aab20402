"""Generates the tables of settings in docs/configuration.md from `ProducerConfig`: from its fields,
their checks, and its docstring.

    python .ci/settings_table.py

`tests/test_docs_configuration.py` compares the tables with the code.
"""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
PAGE: Final = ROOT / "docs" / "configuration.md"
BEGIN: Final = "<!-- settings -->\n"
END: Final = "<!-- end of settings -->"
HEAD: Final = (
    "| setting | in Java | type | default | unit | values | meaning |",
    "|---|---|---|---|---|---|---|",
)
GROUPS: Final = {
    "bootstrap_servers": "The cluster",
    "acks": "Delivery",
    "linger_ms": "Batches and memory",
    "compression_type": "Compression and topics",
    "partitioner_adaptive_partitioning_enable": "Partitions",
    "transactional_id": "Transactions",
    "metadata_max_age_ms": "Metadata",
    "retry_backoff_ms": "Connections",
    "security_protocol": "TLS and SASL",
}
"""Heading of each table, by the first setting of the table."""
ONLY_HERE: Final = {
    "adaptive_linger",
    "allow_auto_create_topics",
    "close_timeout_ms",
    "elastic_batch_size",
    "receive_max_bytes",
    "sasl_allow_cleartext",
    "sasl_credentials",
    "sasl_delegation_token",
    "sasl_kerberos_keytab",
    "sasl_kerberos_principal",
    "sasl_password",
    "sasl_token_provider",
    "sasl_username",
    "ssl_context",
    "ssl_crl_location",
    "ssl_key_location",
    "topic_profiles",
}
"""Settings that the Java producer lacks."""
OTHER_IN_JAVA: Final = {"batch_size": "16384"}
"""Defaults of the Java producer that differ from ours."""
DEFAULTS: Final = {"client_id": "generated", "enable_idempotence": "on"}
"""Defaults that are described in words."""
SIZES: Final = {"batch_size", "elastic_batch_size", "buffer_memory", "max_request_size"}
"""Settings in bytes whose names do not contain the unit."""
PAGES: Final = {
    "acks": "[errors](errors.md#guarantees-by-acks)",
    "linger_ms": "[tuning](tuning.md#linger)",
    "batch_size": "[tuning](tuning.md#batch-size)",
    "buffer_memory": "[tuning](tuning.md#memory)",
    "compression_type": "[tuning](tuning.md#compression)",
    "close_timeout_ms": "[closing](sending.md#flushing-and-closing)",
    "topic_profiles": "[topic profiles](#topic-profiles)",
    "transactional_id": "[transactions](transactions.md)",
    "enable_metrics_push": "[metrics](observability.md#metrics-for-the-brokers)",
    "security_protocol": "[security](security.md)",
}
"""Link to the page that explains a setting."""

_ENTRY: Final = re.compile(r"^ {8}(\w+(?:, \w+)*): ((?:.*\n(?: {12}.*\n)*))", re.MULTILINE)
_JAVA_HAS_NONE: Final = re.compile(r" \(Java(?:: none| has no such setting)\.\)")


def meanings() -> dict[str, str]:
    """Return the description of each setting in the docstring, by name."""
    from aiokprod import ProducerConfig

    names = sorted((field.name for field in dataclasses.fields(ProducerConfig)), key=len)
    name = re.compile(rf"(?<![`\w])({'|'.join(name for name in names if '_' in name)})(?!\w)")
    text = (ProducerConfig.__doc__ or "").split("Attributes:\n")[1].split("\n    Raises:")[0]
    found: dict[str, str] = {}
    for entry, meaning in _ENTRY.findall(text + "\n"):
        line = _JAVA_HAS_NONE.sub("", " ".join(meaning.split())).replace("``", "`")
        line = re.sub(r"; see docs/\w+\.md", "", line).replace("|", r"\|")
        line = name.sub(r"`\1`", line)
        found |= dict.fromkeys(entry.split(", "), line.removesuffix("."))
    return found


def kind(name: str, annotation: str) -> str:
    """Return the type of a setting as a caller writes it."""
    if annotation == "Secret | None":
        annotation = "str | Secret | None"
    return f"`{annotation}`".replace(" | None`", "`").replace("|", r"\|")


def unit(name: str) -> str:
    if name in SIZES or name.endswith("_bytes"):
        return "bytes"
    return "ms" if name.endswith("_ms") else ""


def values(check: object) -> str:
    """Return the range or the choices of a check, or an empty string if any value of the type is
    valid."""
    from aiokprod._config import fields, security

    match check:
        case fields.IntRange(low, high, also):
            limited = high not in (fields.INT32_MAX, fields.INT64_MAX)
            text = f"{low} to {high}" if limited else f"{low} or more"
            return ", ".join([text, *map(str, also)])
        case fields.Choice(names):
            return ", ".join(f'`"{name}"`' for name in names)
        case fields.Acks():
            return '`0`, `1`, `"all"`'
        case fields.ServerList():
            return '`"host:port"`, several with commas, or a list'
        case fields.Text(longest):
            return f"1 to {longest} bytes of UTF-8"
        case security.PathText(what):
            return f"path of a {what}"
        case security.Pem():
            return "PEM text"
        case security.HostCheck():
            return '`"https"`, `""`'
    return ""


def default(field: dataclasses.Field[Any]) -> str:
    if field.default is dataclasses.MISSING:
        return "required"
    if field.name in DEFAULTS:
        return DEFAULTS[field.name]
    value = field.default
    if value is None:
        return "none"
    if isinstance(value, int) and not isinstance(value, bool):
        value = int(value)
    return f'`"{value}"`' if isinstance(value, str) else f"`{value!r}`"


def in_java(name: str) -> str:
    if name in ONLY_HERE:
        return "-"
    text = f"`{name.replace('_', '.')}`"
    return f"{text} (default {OTHER_IN_JAVA[name]})" if name in OTHER_IN_JAVA else text


def tables() -> Iterator[str]:
    """Yield the lines of all tables with their headings."""
    from aiokprod import ProducerConfig

    told = meanings()
    for field in dataclasses.fields(ProducerConfig):
        name = field.name
        if name in GROUPS:
            yield from ("", f"### {GROUPS[name]}", "", *HEAD)
        meaning = told[name] + (f"; see {PAGES[name]}" if name in PAGES else "")
        cells = (
            f"`{name}`", in_java(name), kind(name, str(field.type)), default(field), unit(name),
            values(field.metadata["check"]), meaning,
        )  # fmt: skip
        yield "| " + " | ".join(cells) + " |"
    yield ""


def updated(text: str) -> str:
    """Return the text of the page with newly generated tables. Raises `ValueError` if a marker is
    missing."""
    before, found, rest = text.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not found or not ended:
        raise ValueError("configuration.md: the markers of the tables of settings are missing")
    return before + BEGIN + "\n".join([*tables(), ended]) + after


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    PAGE.write_text(updated(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
