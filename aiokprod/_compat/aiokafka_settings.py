"""Translates the arguments of `aiokafka.AIOKafkaProducer` (0.14) to settings of aiokprod."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from aiokprod.errors import ConfigError

Defaults = Literal["aiokprod", "aiokafka"]

DEFAULT_PORT: Final = 9092
AIOKAFKA_DEFAULTS: Final[dict[str, Any]] = {
    "acks": 1,
    "enable_idempotence": False,
    "max_batch_size": 16_384,
    "linger_ms": 0,
    "request_timeout_ms": 40_000,
    "metadata_max_age_ms": 300_000,
    "max_request_size": 1_048_576,
    "retry_backoff_ms": 100,
    "connections_max_idle_ms": 540_000,
}
"""aiokafka's defaults for arguments whose default or meaning differs from aiokprod's."""

DIFFERENCES: Final[dict[str, str]] = {
    "acks": 'acks="all" (aiokafka: 1)',
    "enable_idempotence": "enable_idempotence=True (aiokafka: False)",
    "max_batch_size": "batch_size=131072 (aiokafka: max_batch_size=16384)",
    "linger_ms": "linger_ms=5, adaptive (aiokafka: 0)",
    "request_timeout_ms": "request_timeout_ms=30000, delivery_timeout_ms=120000, "
    "max_block_ms=60000 (aiokafka: request_timeout_ms=40000 for all three)",
    "retry_backoff_ms": "backoff of retries grows from 100 to 1000 ms (aiokafka: always 100 ms)",
}
"""Differences of aiokprod's defaults, by the argument of aiokafka that restores its behaviour."""

_PLAIN: Final = ("metadata_max_age_ms", "max_request_size", "linger_ms", "transaction_timeout_ms")
"""Arguments with the same name, unit and meaning."""


class _Unset:
    def __repr__(self) -> str:
        return "<unset>"


UNSET: Final[Any] = _Unset()
"""The default of every argument, so that an explicit value can be distinguished from a default."""


def _theirs() -> Any:
    try:
        from aiokafka.producer.producer import _missing
    except ImportError:
        return UNSET
    return _missing


@dataclass(slots=True)
class AIOKafkaSettings:
    """The result of a translation.

    Attributes:
        settings: keyword arguments of `Producer`.
        differences: texts of `DIFFERENCES` for arguments that were not given.
        batch_size: maximum size of a batch of `create_batch`, in bytes.
    """

    settings: dict[str, Any] = field(repr=False)
    differences: tuple[str, ...]
    batch_size: int


def bootstrap_servers(given: Any) -> list[str]:
    """Return `host:port` of each server, from a comma-separated string or a sequence.

    aiokafka's default port 9092 is added to servers without a port. IPv6 addresses without a port
    get brackets.
    """
    parts: Iterable[Any] = [given] if isinstance(given, str) else given
    try:
        servers = [server.strip() for part in parts for server in part.split(",")]
    except (AttributeError, TypeError):
        raise ConfigError(
            'bootstrap_servers must be "host:port" or a list of such strings, not '
            f"{type(given).__name__}"
        ) from None
    return [_with_port(server) for server in servers if server]


def _with_port(server: str) -> str:
    if server.startswith("["):
        return server if server.partition("]")[2] else f"{server}:{DEFAULT_PORT}"
    try:
        ipaddress.IPv6Address(server)
    except ValueError:
        return server if ":" in server else f"{server}:{DEFAULT_PORT}"
    return f"[{server}]:{DEFAULT_PORT}"


def translate(given: dict[str, Any], defaults: str) -> AIOKafkaSettings:
    """Translate the arguments `given` to settings of aiokprod. Arguments that were not given are
    UNSET.

    Names that aiokafka does not have are kept; `Producer` rejects unknown names.

    Raises:
        ConfigError: an argument is invalid or has no equivalent. Like aiokafka's error, it is a
            ValueError, and its text begins with aiokafka's text.
    """
    if defaults not in ("aiokprod", "aiokafka"):
        raise ConfigError(f'defaults={defaults!r}: choose "aiokprod" or "aiokafka"')
    # FastStream passes aiokafka's marker `_missing` for an argument that is not given.
    marks = (UNSET, _theirs())
    chosen = {name: value for name, value in given.items() if not any(value is x for x in marks)}
    differences = () if defaults == "aiokafka" else _differences(chosen)
    if defaults == "aiokafka":
        chosen = {**AIOKAFKA_DEFAULTS, **chosen}
        if chosen.get("transactional_id") is not None or given.get("enable_idempotence") is True:
            if given.get("acks", UNSET) is UNSET:
                chosen["acks"] = "all"
            chosen["enable_idempotence"] = True
    settings: dict[str, Any] = {
        "bootstrap_servers": bootstrap_servers(chosen.pop("bootstrap_servers", "localhost"))
    }
    _acks(chosen, settings)
    _compression(chosen, settings)
    _batches(chosen, settings)
    _timeouts(chosen, settings)
    _security(chosen, settings)
    for name in _PLAIN:
        if name in chosen:
            settings[name] = chosen.pop(name)
    idle = chosen.pop("connections_max_idle_ms", UNSET)
    if idle is not UNSET:
        settings["connections_max_idle_ms"] = -1 if idle is None else idle
    for name in ("client_id", "transactional_id"):
        if chosen.get(name) is not None:
            settings[name] = chosen[name]
        chosen.pop(name, None)
    both = sorted(settings.keys() & chosen.keys())
    if both:
        raise ConfigError(
            f"{both[0]} is given twice: once under its own name, once by an argument of aiokafka "
            "that sets it; remove one of them"
        )
    settings.update(chosen)
    return AIOKafkaSettings(settings, differences, settings.get("batch_size", 131_072))


def _differences(chosen: dict[str, Any]) -> tuple[str, ...]:
    texts = dict(DIFFERENCES)
    if chosen.get("transactional_id") is not None or chosen.get("enable_idempotence") is True:
        del texts["acks"], texts["enable_idempotence"]  # aiokafka's defaults are the same then
    return tuple(text for name, text in texts.items() if name not in chosen)


def _acks(chosen: dict[str, Any], settings: dict[str, Any]) -> None:
    acks = chosen.pop("acks", UNSET)
    idempotent = chosen.pop("enable_idempotence", UNSET)
    if chosen.get("transactional_id") is not None:
        idempotent = True  # aiokafka ignores the argument then
    if acks is not UNSET:
        if isinstance(acks, bool) or acks not in (0, 1, -1, "all"):
            raise ConfigError(f'Invalid ACKS parameter: acks={acks!r}, choose 0, 1, -1 or "all"')
        if idempotent is True and acks not in (-1, "all"):
            raise ConfigError(
                f'acks={acks} not supported if enable_idempotence=True: use acks="all"'
            )
        settings["acks"] = "all" if acks == -1 else acks
    if idempotent is not UNSET:
        settings["enable_idempotence"] = bool(idempotent)


def _compression(chosen: dict[str, Any], settings: dict[str, Any]) -> None:
    codec = chosen.pop("compression_type", None)
    if codec not in ("gzip", "snappy", "lz4", "zstd", None):
        raise ConfigError(
            f"Invalid compression type! compression_type={codec!r}, choose gzip, snappy, lz4, zstd "
            "or None"
        )
    if codec is not None:
        settings["compression_type"] = codec


def _batches(chosen: dict[str, Any], settings: dict[str, Any]) -> None:
    size = chosen.pop("max_batch_size", UNSET)
    if size is not UNSET:
        settings["batch_size"] = size


def _timeouts(chosen: dict[str, Any], settings: dict[str, Any]) -> None:
    """Translate aiokafka's single timeout, which applies to requests, to records in the buffer and
    to calls of `send`. `delivery_timeout_ms` is twice the timeout, because a record may be put into
    a request just before the timeout passes."""
    timeout = chosen.pop("request_timeout_ms", UNSET)
    if timeout is not UNSET:
        if isinstance(timeout, bool) or not isinstance(timeout, int) or timeout < 1:
            raise ConfigError(f"request_timeout_ms={timeout!r}: must be at least 1 ms, an int")
        linger = chosen.get("linger_ms", 5)
        linger = linger if isinstance(linger, int) else 0
        settings["request_timeout_ms"] = timeout
        if "delivery_timeout_ms" not in chosen:
            settings["delivery_timeout_ms"] = max(2 * timeout, timeout + linger)
        if "max_block_ms" not in chosen:
            settings["max_block_ms"] = timeout
    backoff = chosen.pop("retry_backoff_ms", UNSET)
    if backoff is not UNSET:
        settings["retry_backoff_ms"] = backoff
        if "retry_backoff_max_ms" not in chosen:
            settings["retry_backoff_max_ms"] = backoff  # aiokafka's backoff does not grow


def _security(chosen: dict[str, Any], settings: dict[str, Any]) -> None:
    protocol = chosen.pop("security_protocol", "PLAINTEXT")
    context = chosen.pop("ssl_context", None)
    if protocol not in ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"):
        raise ConfigError(
            "`security_protocol` should be SSL or PLAINTEXT, or one of these with SASL_ before "
            f"it, not {protocol!r}"
        )
    if protocol == "SSL" and context is None:
        raise ConfigError(
            "`ssl_context` is mandatory if security_protocol=='SSL': pass "
            "ssl.create_default_context(cafile=...)"
        )
    settings["security_protocol"] = protocol
    if protocol in ("SSL", "SASL_SSL") and context is not None:
        settings["ssl_context"] = context
    sasl = {name: chosen.pop(name, UNSET) for name in tuple(_SASL)}
    if chosen.pop("sasl_kerberos_domain_name", None) is not None:
        raise ConfigError(
            "sasl_kerberos_domain_name is not supported: the broker's principal is "
            "sasl_kerberos_service_name at the host name of bootstrap_servers and "
            "advertised.listeners; use names there that the KDC has"
        )
    if not protocol.startswith("SASL_"):
        return  # aiokafka ignores the SASL arguments too
    mechanism = "PLAIN" if sasl["sasl_mechanism"] is UNSET else sasl["sasl_mechanism"]
    settings["sasl_mechanism"] = mechanism
    if mechanism in ("PLAIN", "OAUTHBEARER") and protocol == "SASL_PLAINTEXT":
        # aiokafka only logs a warning.
        settings["sasl_allow_cleartext"] = chosen.pop("sasl_allow_cleartext", True)
    for name, ours in _SASL.items():
        if ours and sasl[name] is not UNSET and sasl[name] is not None:
            settings[ours] = sasl[name]
    if mechanism != "GSSAPI":
        settings.pop("sasl_kerberos_service_name", None)


_SASL: Final = {
    "sasl_mechanism": "",
    "sasl_plain_username": "sasl_username",
    "sasl_plain_password": "sasl_password",
    "sasl_oauth_token_provider": "sasl_token_provider",
    "sasl_kerberos_service_name": "sasl_kerberos_service_name",
}
"""aiokafka's SASL arguments, and the settings that take their values."""
