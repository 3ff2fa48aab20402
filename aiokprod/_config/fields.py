"""Checks of individual settings, and hints for keys that are not settings of this producer.

This module does not depend on `ProducerConfig`; `config.py` attaches the checks to the fields.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from aiokprod._config.foreign_names import FOREIGN_NAMES, VALUES, dotted, replacement
from aiokprod.errors import ConfigError

INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1


MISSING_SERVERS: Final = 'bootstrap_servers is missing: name at least one "host:port"'


class DefaultInt(int):
    """A default value, which is changed with a warning if it conflicts with another setting."""

    __slots__ = ()


class Check(Protocol):
    """The check of one setting."""

    def validate(self, name: str, value: object) -> object:
        """Return the normalised value.

        Raises:
            ConfigError: the value is not valid.
        """

    def parse(self, name: str, text: str) -> object:
        """Parse a value of a Java properties file. The result is not validated yet.

        Raises:
            ConfigError: the text has the wrong type.
        """


def invalid_setting(name: str, value: object, fix: str) -> ConfigError:
    """Return the error for an invalid value. Used only for settings that contain no secret."""
    shown = repr(value)
    if len(shown) > 80:
        shown = shown[:80] + "…"
    return ConfigError(f"{name}={shown}: {fix}")


@dataclass(frozen=True, slots=True)
class IntRange:
    """An int from `low` to `high`, both included, or one of the values in `also`."""

    low: int
    high: int = INT32_MAX
    also: tuple[int, ...] = ()

    def validate(self, name: str, value: object) -> int:
        fix = f"use an int of {self.low} to {self.high}"
        if self.also:
            fix += " or " + ", ".join(map(str, self.also))
        if isinstance(value, bool) or not isinstance(value, int):
            raise invalid_setting(name, value, fix)
        if value not in self.also and not self.low <= value <= self.high:
            raise invalid_setting(name, value, fix)
        return value

    def parse(self, name: str, text: str) -> int:
        try:
            return int(text.strip())
        except ValueError:
            raise invalid_setting(name, text, "use a decimal integer") from None


@dataclass(frozen=True, slots=True)
class Flag:
    """A bool; None stands for "not set" if the setting is optional."""

    optional: bool = False

    def validate(self, name: str, value: object) -> bool | None:
        if value is None and self.optional:
            return None
        if not isinstance(value, bool):
            raise invalid_setting(name, value, "use True or False")
        return value

    def parse(self, name: str, text: str) -> bool:
        match text.strip().lower():
            case "true":
                return True
            case "false":
                return False
        raise invalid_setting(name, text, "use true or false")


@dataclass(frozen=True, slots=True)
class Choice:
    """Checks that a setting is one of a few strings.

    Attributes:
        later: known values that are not supported yet.
        any_case: values from a mapping may be in any case, as in Java.
    """

    names: tuple[str, ...]
    later: tuple[str, ...] = ()
    optional: bool = False
    any_case: bool = False

    def validate(self, name: str, value: object) -> str | None:
        if value is None and self.optional:
            return None
        if isinstance(value, str):
            if value in self.names:
                return value
            if value in self.later:
                only = " or ".join(map(repr, self.names))
                raise invalid_setting(name, value, f"not in this version yet; only {only} is")
        raise invalid_setting(name, value, "use one of " + ", ".join(map(repr, self.names)))

    def parse(self, name: str, text: str) -> str:
        text = text.strip()
        if not self.any_case:
            return text
        return {known.lower(): known for known in self.names}.get(text.lower(), text)


CODEC_CHOICE: Final = Choice(("none", "gzip", "snappy", "lz4", "zstd"))
LEVELS: Final = {
    "gzip": IntRange(1, 9, also=(-1,)),
    "lz4": IntRange(1, 17),
    "zstd": IntRange(-131_072, 22),
}
"""The levels of the codecs that have levels."""


@dataclass(frozen=True, slots=True)
class Text:
    """A string that is sent in requests: no control characters, at most `longest` bytes."""

    longest: int = 32767
    optional: bool = True
    empty_is_none: bool = False

    def validate(self, name: str, value: object) -> str | None:
        if value is None and self.optional:
            return None
        if not isinstance(value, str):
            raise invalid_setting(name, value, "use a str")
        if not value:
            if self.empty_is_none:
                return None
            raise invalid_setting(name, value, "must not be empty")
        # A line break in a client id could forge lines in the broker's request log.
        if any(ord(char) < 32 or ord(char) == 127 for char in value):
            raise invalid_setting(name, value, "must not contain control characters")
        try:
            size = len(value.encode())
        except UnicodeEncodeError:
            raise invalid_setting(name, value, "cannot be encoded as UTF-8") from None
        if size > self.longest:
            raise invalid_setting(
                name, value, f"{size} bytes of UTF-8 are more than {self.longest}"
            )
        return value

    def parse(self, name: str, text: str) -> str:
        return text.strip()


@dataclass(frozen=True, slots=True)
class Acks:
    """0, 1 or "all"; also accepts -1 and the numbers as strings."""

    def validate(self, name: str, value: object) -> int | str:
        if value in ("all", "-1") or (value == -1 and type(value) is int):
            return "all"
        if value in ("0", "1"):
            return int(str(value))
        if type(value) is int and value in (0, 1):
            return value
        raise invalid_setting(name, value, 'use 0, 1 or "all"')

    def parse(self, name: str, text: str) -> str:
        return text.strip()


@dataclass(frozen=True, slots=True)
class ServerList:
    """ "host:port" strings, or one string with commas. Returns a tuple without duplicates."""

    def validate(self, name: str, value: object) -> tuple[str, ...]:
        if isinstance(value, str):
            entries: list[str] = value.split(",")
        elif isinstance(value, Iterable) and not isinstance(value, (bytes, bytearray, dict)):
            entries = list(value)
        else:
            raise invalid_setting(
                name, value, 'use "host:port", "host1:port1,host2:port2" or a list of them'
            )
        servers: dict[str, None] = {}
        for entry in entries:
            if not isinstance(entry, str):
                raise invalid_setting(name, entry, 'each server must be a str "host:port"')
            if entry.strip():
                parse_address(name, entry.strip())
                servers[entry.strip()] = None
        if not servers:
            raise invalid_setting(name, value, 'name at least one server as "host:port"')
        return tuple(servers)

    def parse(self, name: str, text: str) -> str:
        return text


def parse_address(name: str, entry: str) -> tuple[str, int]:
    """Return host and port of "host:port", "[ipv6]:port" or "PROTOCOL://host:port".

    Raises:
        ConfigError: the entry has another form, or its port is not 1 to 65535.

    Source: Java `Utils.getHost`, `Utils.getPort`.
    """
    if "@" in entry:  # the entry is not shown, because it may contain a password
        raise ConfigError(
            f"{name}: an address has user information before '@': use \"host:port\", and "
            "sasl_username and sasl_password for credentials"
        )
    address = entry.partition("://")[2] or entry
    host, colon, port_text = address.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if bracketed:
        host = host[1:-1]
    if not colon or not host or (":" in host and not bracketed):
        raise invalid_setting(
            name, entry, 'use "host:port"; an IPv6 address needs brackets: "[::1]:9092"'
        )
    if any(char.isspace() or char in "/[]@," or not char.isprintable() for char in host):
        raise invalid_setting(
            name, entry, "the host name contains a character that is not allowed in host names"
        )
    if not (port_text.isascii() and port_text.isdigit() and 1 <= int(port_text[:6]) <= 65535):
        raise invalid_setting(name, entry, "the port must be 1 to 65535")
    return host, int(port_text)


_OBJECTS: Final = "pass an object to Producer({}) instead; class names are not loaded"
_PEM: Final = "leave it out; keys and certificates are PEM here, not JKS or PKCS12"
_TLS: Final = "leave it out; TLS 1.2 or newer is used; pass ssl_context for anything special"
_SASL: Final = "it has no meaning here; see docs/security.md"
_OIDC: Final = "pass sasl_token_provider=OidcTokens(...), see docs/security.md"
_JVM: Final = "it configures the JVM and has no meaning here; leave it out"
_METRICS: Final = "leave it out; read producer.metrics() or pass Producer(observer=...)"
_BROKER: Final = "it is a broker or topic setting; set it on the cluster"
_CONSUMER: Final = "it is a consumer setting; leave it out"
_CALLBACK: Final = "pass on_delivery= to submit or try_submit, or await the Delivery"
_LOGGING: Final = "leave it out; set the level of the logger 'aiokprod' with the logging module"
_NOT_YET: Final = "not in this version yet; leave it out"

# Advice for keys that have no replacement in `foreign_names`: client settings that have no meaning
# here or are passed as objects, and settings of brokers, topics and consumers.
_HINTS: Final[dict[str, str]] = {
    "key.serializer": _OBJECTS.format("key_serializer=..."),
    "value.serializer": _OBJECTS.format("value_serializer=..."),
    "partitioner.class": _OBJECTS.format("partitioner=..."),
    "interceptor.classes": _OBJECTS.format("interceptors=[...]"),
    "partitioner": _OBJECTS.format("partitioner=..."),
    "interceptors": _OBJECTS.format("interceptors=[...]"),
    "observer": _OBJECTS.format("observer=..."),
    "partitioner.rack.aware": _NOT_YET,
    "client.rack": _NOT_YET,
    "transaction.two.phase.commit.enable": _NOT_YET,
    "metadata.cluster.check.enable": _NOT_YET,
    "config.providers": "read secrets in your own code and pass the values",
    "metric.reporters": _METRICS,
    "metrics.num.samples": _METRICS,
    "metrics.sample.window.ms": _METRICS,
    "metrics.recording.level": _METRICS,
    "auto.include.jmx.reporter": _METRICS,
    "security.providers": _JVM,
    # aiokafka, kafka-python and librdkafka
    "api.version": "leave it out; versions are negotiated with each broker",
    "loop": "leave it out; the running loop is used",
    "ssl.cadata": "use ssl_truststore_certificates (PEM text)",
    "enable.ssl.certificate.verification": "certificates are always verified; "
    "pass a custom ssl_context for anything else",
    "sasl.jaas.config": "use sasl_username and sasl_password, or sasl_token_provider, "
    "not JAAS text",
    "dr.cb": _CALLBACK,
    "dr.msg.cb": _CALLBACK,
    "on.delivery": _CALLBACK,
    "error.cb": "leave it out; calls raise errors, and the logger 'aiokprod' reports connections",
    "log.cb": _LOGGING,
    "log.level": _LOGGING,
    "debug": _LOGGING,
    "stats.cb": _METRICS,
    "statistics.interval.ms": _METRICS,
    "config": "it is the first positional argument: Producer(ProducerConfig(...))",
    "compression.level": "use compression_gzip_level, compression_lz4_level or _zstd_level",
    # brokers and topics
    "replica.lag.time.max.ms": _BROKER,
    "unclean.leader.election.enable": _BROKER,
    "min.insync.replicas": _BROKER,
    "message.timestamp.type": _BROKER,
    "max.message.bytes": _BROKER,
    "auto.create.topics.enable": "use allow_auto_create_topics; this one is the cluster's",
    "num.partitions": _BROKER,
    "default.replication.factor": _BROKER,
    "retention.ms": _BROKER,
    "cleanup.policy": _BROKER,
    "transaction.max.timeout.ms": _BROKER,
    # consumers
    "group.id": _CONSUMER,
    "auto.offset.reset": _CONSUMER,
    "isolation.level": _CONSUMER,
    "key.deserializer": _CONSUMER,
    "value.deserializer": _CONSUMER,
}

_PREFIX_HINTS: Final[tuple[tuple[str, str], ...]] = (
    ("ssl.keystore.", _PEM),
    ("ssl.truststore.", _PEM),
    ("ssl.", _TLS),
    ("sasl.oauthbearer.", _OIDC),
    ("sasl.kerberos.", "tickets come from the cache or sasl_kerberos_keytab, not kinit"),
    ("sasl.", _SASL),
    ("log.", _BROKER),
    ("broker.", _BROKER),
    ("consumer.", _CONSUMER),
)


_CLIENTS: Final = {"java": "the Java client"}
"""Names of clients in messages, where they differ from the keys in `foreign_names`."""

_MISSPELT: Final = 0.9
"""Similarity above which a key is considered a misspelt setting."""


def unknown_key(key: str, known: Iterable[str]) -> ConfigError:
    """Return the error for an unknown key. Its text names the replacement or the most similar
    setting."""
    fields = list(known)
    if (ours := key.replace(".", "_")) in fields:
        return ConfigError(
            f"{key!r} is not a setting: as a keyword it is {ours}; names with dots are accepted by "
            "ProducerConfig.from_mapping({...}), whose result is the producer's first argument"
        )
    name = dotted(key)
    hint = _HINTS.get(name) or _use_replacement(name)
    names = [field.replace("_", ".") for field in fields]
    near = difflib.get_close_matches(name, names, n=1, cutoff=_MISSPELT)
    if hint is None and not near:
        hint = next((text for prefix, text in _PREFIX_HINTS if name.startswith(prefix)), None)
        client = next((client for client, table in FOREIGN_NAMES.items() if name in table), None)
        if hint is None and client is not None:
            hint = (
                f"it is one of {_CLIENTS.get(client, client)} without a counterpart; leave it out"
            )
    if hint is not None:
        return ConfigError(f"{key!r} is not a setting of this producer: {hint}")
    near = near or difflib.get_close_matches(name, names, n=1)
    if near:
        style = near[0].replace(".", "_") if "_" in key else near[0]
        return ConfigError(f"{key!r} is not a setting; did you mean {style!r}?")
    return ConfigError(
        f"{key!r} is not a setting, and no setting has a similar name; docs/configuration.md lists "
        "them"
    )


def _use_replacement(name: str) -> str | None:
    """Return the advice for a name that another client uses for a field; None if there is none."""
    field = replacement(name)
    if field is None:
        return None
    return f"use {field}" + (f" ({VALUES[name]})" if name in VALUES else "")
