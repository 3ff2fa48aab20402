"""Translates settings of librdkafka and confluent-kafka-python to settings of aiokprod.

`KEYS` is the only list of librdkafka's settings: `AIOProducer`, `aiokprod config --from librdkafka`
and the table of docs/migration/confluent-kafka.md use it. `foreign_names` has the fields for
settings with another name. Source: CONFIGURATION.md of librdkafka.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from aiokprod._config.fields import LEVELS
from aiokprod._config.foreign_names import LIBRDKAFKA
from aiokprod._redaction import redacted
from aiokprod.config import ProducerConfig
from aiokprod.errors import ConfigError
from aiokprod.partitioners import AnyPartitioner, ConsistentRandomPartitioner
from aiokprod.security import OidcTokens, Secret


class Support(enum.Enum):
    """The treatment of a setting."""

    SAME = "supported"
    TRANSLATED = "translated"
    WITHOUT_EFFECT = "accepted without effect"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Key:
    """A setting of librdkafka.

    Attributes:
        setting: the corresponding setting of aiokprod; "" if there is none.
        note: the difference, or the reason why the setting has no effect or is refused.
        convert: function of name and value that returns the value for `setting`; None for no
            conversion.
        accepted: values, in lower case, of a refused setting or one without effect that are
            accepted without a message, because they match aiokprod's behaviour.
    """

    support: Support
    setting: str = ""
    note: str = ""
    convert: Callable[[str, Any], Any] | None = None
    accepted: tuple[str, ...] = ()


def _number(name: str, value: Any) -> int:
    if isinstance(value, bool):
        raise ConfigError(f"{name}={value!r}: must be a whole number")
    try:
        return int(value)
    except (TypeError, ValueError):
        raise ConfigError(f"{name}={value!r}: must be a whole number") from None


def _bytes_of_kbytes(name: str, value: Any) -> int:
    return _number(name, value) * 1024


def _delivery_timeout(name: str, value: Any) -> int:
    """Convert 0, which means no limit in librdkafka, to the longest timeout here, 24 days."""
    return _number(name, value) or 2**31 - 1


def _linger(name: str, value: Any) -> int:
    """Round up fractions of a millisecond, which librdkafka accepts."""
    try:
        if not isinstance(value, bool):
            return math.ceil(float(value))
    except (TypeError, ValueError, OverflowError):
        pass
    raise ConfigError(f"{name}={value!r}: must be a number of milliseconds")


def _refresh_interval(name: str, value: Any) -> int:
    """Convert -1, which means never in librdkafka, to the longest interval."""
    number = _number(name, value)
    return 2**31 - 1 if number == -1 else number


def _system_default(name: str, value: Any) -> int:
    """Convert 0, librdkafka's value for the system's default size of a socket buffer, to -1."""
    return _number(name, value) or -1


def _never_if_zero(name: str, value: Any) -> int:
    return _number(name, value) or -1


def _host_check(_name: str, value: Any) -> Any:
    return "" if value == "none" else value


def _same(note: str = "", convert: Callable[[str, Any], Any] | None = None) -> Key:
    return Key(Support.SAME, note=note, convert=convert)


def _translated(note: str = "", convert: Callable[[str, Any], Any] | None = None) -> Key:
    return Key(Support.TRANSLATED, note=note, convert=convert)


def _no_effect(note: str, *accepted: str) -> Key:
    return Key(Support.WITHOUT_EFFECT, note=note, accepted=accepted)


def _refused(note: str, *accepted: str) -> Key:
    return Key(Support.REFUSED, note=note, accepted=accepted)


def _with_setting(name: str, key: Key) -> Key:
    """Return the row of a setting. If the setting is translated, add the corresponding field."""
    if key.support is not Support.TRANSLATED:
        return key
    return replace(key, setting=LIBRDKAFKA.get(name, name.replace(".", "_")) or "")


_CONTEXT: Final = "pass an ssl.SSLContext to Producer as ssl_context"
_ASSERTION: Final = "pass JwtBearerTokens to Producer as sasl_token_provider"
_CALLBACK: Final = "a callback of the C library; Producer takes an Observer instead"
_OIDC: Final = "with sasl.oauthbearer.method=oidc: OidcTokens"
_LOGGING: Final = 'the logger is "aiokprod"; configure it with the logging module'
_VERSIONS: Final = "versions are always negotiated with each broker"
_LEVELS: Final = [f"compression_{codec}_level" for codec in LEVELS]
_METADATA: Final = "the metadata of missing topics is requested with exponential backoff"

_ROWS: Final[dict[str, Key]] = {
    # connection
    "bootstrap.servers": _same("a server without a port gets 9092"),
    "metadata.broker.list": _translated(),
    "client.id": _same(),
    "client.dns.lookup": _same(),
    "socket.timeout.ms": _no_effect("request_timeout_ms limits every request"),
    "socket.blocking.max.ms": _no_effect("no call blocks"),
    "socket.send.buffer.bytes": _translated("0 becomes -1", _system_default),
    "socket.receive.buffer.bytes": _translated("0 becomes -1", _system_default),
    "socket.keepalive.enable": _no_effect("connections_max_idle_ms closes unused connections"),
    "socket.nagle.disable": _refused("Nagle's algorithm is always off", "true"),
    "socket.max.fails": _no_effect("a connection with a request that timed out is closed"),
    "broker.address.ttl": _no_effect("names are resolved for every connection"),
    "broker.address.family": _refused("addresses of both families are tried", "any"),
    "socket.connection.setup.timeout.ms": _same(),
    "connections.max.idle.ms": _translated("0 becomes -1", _never_if_zero),
    "reconnect.backoff.ms": _same(),
    "reconnect.backoff.max.ms": _same(),
    "reconnect.backoff.jitter.ms": _no_effect("the jitter is 20 % of the backoff"),
    "message.max.bytes": _translated(),
    "message.copy.max.bytes": _no_effect("keys and values are always copied"),
    "receive.message.max.bytes": _translated(),
    "max.in.flight.requests.per.connection": _same(),
    "max.in.flight": _translated(),
    "metadata.recovery.strategy": _same(),
    "metadata.recovery.rebootstrap.trigger.ms": _same(),
    "topic.metadata.refresh.interval.ms": _translated(
        "-1 (never) becomes 2147483647", _refresh_interval
    ),
    "metadata.max.age.ms": _same(),
    "topic.metadata.refresh.fast.interval.ms": _no_effect(
        f"{_METADATA}, as retries are: retry_backoff_ms"
    ),
    "topic.metadata.refresh.fast.cnt": _no_effect(_METADATA),
    "topic.metadata.refresh.sparse": _refused("only topics in use are requested", "true"),
    "topic.metadata.propagation.max.ms": _no_effect("max_block_ms limits the wait for a topic"),
    "topic.blacklist": _refused("only topics in use are requested; leave it out"),
    "allow.auto.create.topics": _same(),
    "client.rack": _no_effect("partitions are not chosen by rack"),
    "api.version.request": _refused(_VERSIONS, "true"),
    "api.version.request.timeout.ms": _no_effect(_VERSIONS),
    "api.version.fallback.ms": _no_effect(_VERSIONS),
    "broker.version.fallback": _no_effect(_VERSIONS),
    "enable.metrics.push": _same(),
    # records
    "acks": _same("0, 1, -1 or all; other numbers are refused"),
    "request.required.acks": _translated(),
    "enable.idempotence": _same("on by default here, off in librdkafka"),
    "transactional.id": _same(),
    "transaction.timeout.ms": _same(),
    "enable.gapless.guarantee": _refused(
        "a record that fails does not stop the producer", "false"
    ),
    "retries": _same(),
    "message.send.max.retries": _translated(),
    "retry.backoff.ms": _same(),
    "retry.backoff.max.ms": _same(),
    "request.timeout.ms": _same("at most delivery.timeout.ms without linger.ms"),
    "delivery.timeout.ms": _translated("0 (no limit) becomes 2147483647", _delivery_timeout),
    "message.timeout.ms": _translated("0 (no limit) becomes 2147483647", _delivery_timeout),
    "linger.ms": _same(
        "adaptive: an idle leader gets a batch at once; fractions are rounded up", _linger
    ),
    "queue.buffering.max.ms": _translated("fractions are rounded up", _linger),
    "queue.buffering.max.kbytes": _translated("in bytes", _bytes_of_kbytes),
    "queue.buffering.max.messages": _no_effect("memory is limited by bytes: buffer_memory"),
    "queue.buffering.backpressure.threshold": _no_effect("elastic_batch_size has this purpose"),
    "batch.size": _same(),
    "batch.num.messages": _no_effect("batches are limited by bytes: batch_size"),
    "sticky.partitioning.linger.ms": _no_effect("a partition is kept for batch_size bytes"),
    "compression.type": _same(),
    "compression.codec": _translated(),
    "compression.level": _translated(f"{', '.join(_LEVELS[:-1])} or {_LEVELS[-1]}, by "
                                     "compression.type"),
    "partitioner": _translated("the argument partitioner of Producer"),
    "queuing.strategy": _refused("records are sent in the order of the calls", "fifo"),
    "produce.offset.report": _no_effect("offsets are always reported"),
    "delivery.report.only.error": _refused("every record has an outcome", "false"),
    # TLS
    "security.protocol": _same(),
    "ssl.ca.location": _translated(),
    "ssl.ca.pem": _translated(),
    "ssl.certificate.location": _translated(),
    "ssl.certificate.pem": _translated(),
    "ssl.key.location": _same(),
    "ssl.key.pem": _translated(),
    "ssl.key.password": _same(),
    "ssl.crl.location": _same(),
    "ssl.endpoint.identification.algorithm": _translated(
        "none becomes the empty string", _host_check
    ),
    "enable.ssl.certificate.verification": _refused(
        f"certificates are always verified; for anything else {_CONTEXT}", "true"
    ),
    "ssl.keystore.location": _refused(
        "PKCS#12 is not read: convert it to PEM (openssl pkcs12) and set ssl.certificate.location"
    ),
    "ssl.keystore.password": _refused("PKCS#12 is not read: use ssl.key.password with PEM"),
    "ssl.ca.certificate.stores": _no_effect("the system's CAs are used without ssl.ca.location"),
    "https.ca.location": _refused("pass OidcTokens(tls=...) to Producer as sasl_token_provider"),
    "https.ca.pem": _refused("pass OidcTokens(tls=...) to Producer as sasl_token_provider"),
    **dict.fromkeys(
        ("ssl.cipher.suites", "ssl.curves.list", "ssl.sigalgs.list", "ssl.providers",
         "ssl.engine.location", "ssl.engine.id", "ssl_engine_callback_data",
         "ssl.certificate.verify_cb", "ssl_key", "ssl_certificate", "ssl_ca"),
        _refused(_CONTEXT),
    ),
    # SASL
    "sasl.mechanism": _same("PLAIN over SASL_PLAINTEXT is allowed, as in librdkafka"),
    "sasl.mechanisms": _translated(),
    "sasl.username": _same(),
    "sasl.password": _same(),
    "sasl.kerberos.service.name": _same(),
    "sasl.kerberos.principal": _same(),
    "sasl.kerberos.keytab": _same(),
    "sasl.kerberos.kinit.cmd": _refused(
        "no command is run: set sasl.kerberos.keytab, or renew the credential cache yourself"
    ),
    "sasl.kerberos.min.time.before.relogin": _no_effect("tickets are renewed when they expire"),
    "sasl.oauthbearer.method": _translated("oidc: OidcTokens"),
    "sasl.oauthbearer.client.id": _translated(_OIDC),
    "sasl.oauthbearer.client.credentials.client.id": _translated(_OIDC),
    "sasl.oauthbearer.client.secret": _translated(_OIDC),
    "sasl.oauthbearer.client.credentials.client.secret": _translated(_OIDC),
    "sasl.oauthbearer.scope": _translated(_OIDC),
    "sasl.oauthbearer.token.endpoint.url": _translated(_OIDC),
    "sasl.oauthbearer.grant.type": _refused(_ASSERTION, "client_credentials"),
    "sasl.oauthbearer.config": _refused("pass a TokenProvider as sasl_token_provider"),
    "sasl.oauthbearer.extensions": _refused(
        "pass a TokenProvider with an extensions() method to Producer as sasl_token_provider"
    ),
    "sasl.oauthbearer.sub.claim.name": _refused("brokers read the token's claims; leave it out",
                                                "sub"),
    "sasl.oauthbearer.metadata.authentication.type": _refused(
        "pass a TokenProvider as sasl_token_provider", "none"
    ),
    "enable.sasl.oauthbearer.unsecure.jwt": _refused("unsigned tokens are not made", "false"),
    "oauthbearer_token_refresh_cb": _refused("pass a TokenProvider as sasl_token_provider"),
    **dict.fromkeys(
        (f"sasl.oauthbearer.assertion.{name}" for name in (
            "algorithm", "private.key.file", "private.key.passphrase", "private.key.pem", "file",
            "claim.aud", "claim.exp.seconds", "claim.iss", "claim.jti.include",
            "claim.nbf.seconds", "claim.sub", "jwt.template.file")),
        _refused(_ASSERTION),
    ),
    # logs, statistics, callbacks
    "log_level": _no_effect(_LOGGING),
    "log.queue": _no_effect(_LOGGING),
    "log.thread.name": _no_effect(_LOGGING),
    "log.connection.close": _no_effect(_LOGGING),
    "debug": _no_effect(_LOGGING),
    "statistics.interval.ms": _no_effect(
        "no statistics are emitted: call Producer.metrics() when you need them", "0"
    ),
    "enabled_events": _no_effect(_CALLBACK, "0"),
    "enable.random.seed": _no_effect("random numbers are Python's"),
    "internal.termination.signal": _no_effect("there is no thread to end"),
    "builtin.features": _no_effect("read-only in librdkafka"),
    "plugin.library.paths": _refused("libraries of librdkafka cannot be loaded"),
    "interceptors": _refused("Producer takes interceptors=[...]"),
    "default_topic_conf": _refused("write the settings of topics beside the others"),
    **dict.fromkeys(
        ("error_cb", "throttle_cb", "stats_cb", "log_cb", "background_event_cb", "socket_cb",
         "connect_cb", "closesocket_cb", "open_cb", "resolve_cb", "opaque", "dr_cb", "dr_msg_cb"),
        _refused(_CALLBACK),
    ),
    "partitioner_cb": _refused("Producer takes a callable as partitioner=..."),
    "msg_order_cmp": _refused("records are sent in the order of the calls"),
}  # fmt: skip

KEYS: Final[dict[str, Key]] = {name: _with_setting(name, key) for name, key in _ROWS.items()}
"""Every setting of CONFIGURATION.md that applies to producers."""

_PYTHON_KEYS: Final[dict[str, Key]] = {
    "logger": _no_effect(_LOGGING),
    "oauth_cb": _refused("pass a TokenProvider to Producer as sasl_token_provider"),
    "on_delivery": _refused("pass on_delivery to produce, or await its future"),
    "default.topic.config": _refused("write the settings of topics beside the others"),
}
"""Settings that confluent-kafka-python adds."""
SETTINGS: Final = frozenset(setting.name for setting in dataclasses.fields(ProducerConfig))

_PARTITIONERS: Final = ("consistent_random", "murmur2_random", "random")
_OIDC_KEYS: Final = {
    "sasl.oauthbearer.client.id": "client",
    "sasl.oauthbearer.client.credentials.client.id": "client",
    "sasl.oauthbearer.client.secret": "secret",
    "sasl.oauthbearer.client.credentials.client.secret": "secret",
    "sasl.oauthbearer.scope": "scope",
    "sasl.oauthbearer.token.endpoint.url": "url",
}


@dataclass(slots=True)
class LibrdkafkaSettings:
    """The result of a translation.

    Attributes:
        settings: for `ProducerConfig.from_mapping`.
        partitioner: the argument of `Producer`; None is Java's partitioner.
        without_effect: "name: reason" of settings that are accepted but have no effect.
        derived: "name=value: reason" of settings that follow from others.
    """

    settings: dict[str, Any] = field(repr=False)
    partitioner: AnyPartitioner | None
    without_effect: tuple[str, ...]
    derived: tuple[str, ...] = ()


def _text(value: Any) -> str:
    return str(value).strip().lower()


@redacted(ConfigError)
def translate(given: Mapping[str, Any], problems: list[str] | None = None) -> LibrdkafkaSettings:
    """Translate a configuration of librdkafka to settings of aiokprod.

    Settings that are not given have aiokprod's defaults, except the partitioner, whose default is
    librdkafka's, so that keys stay in their partitions. Unknown names are kept, so that
    `ProducerConfig.from_mapping` rejects them with the most similar name.

    Args:
        problems: a list to which the texts of all errors are added, instead of raising
            `ConfigError`. If there are errors, the result is incomplete.

    Raises:
        ConfigError: settings are refused (the error text contains the reasons), are given under two
            names, or have an invalid value.
    """
    found: list[str] = []
    result = _settings_of(given, found)
    if problems is not None:
        problems += found
    elif len(found) == 1:
        raise ConfigError(found[0])
    elif found:
        numbered = (f"({number}) {text}" for number, text in enumerate(found, 1))
        raise ConfigError(f"{len(found)} settings cannot be translated: {'; '.join(numbered)}")
    return result


def _refusal(name: str, key: Key) -> str:
    text = f"{name!r} is not supported: {key.note}"
    if "leave it out" not in key.note:
        text += "; remove it"
    if key.accepted:
        text += f", or set it to {key.accepted[0]}"
    return text


def _settings_of(given: Mapping[str, Any], problems: list[str]) -> LibrdkafkaSettings:
    settings: dict[str, Any] = {}
    origin: dict[str, str] = {}
    without_effect: list[str] = []
    special: dict[str, Any] = {}
    for name, value in given.items():
        key = KEYS.get(name) or _PYTHON_KEYS.get(name)
        if key is not None and key.support is Support.REFUSED:
            if _text(value) not in key.accepted:
                problems.append(_refusal(name, key))
            continue
        if key is not None and key.support is Support.WITHOUT_EFFECT:
            if _text(value) not in key.accepted:
                without_effect.append(f"{name}: {key.note}")
            continue
        if name in _OIDC_KEYS or name in (
            "partitioner", "compression.level", "sasl.oauthbearer.method"
        ):  # fmt: skip
            special[name] = value
            continue
        ours = (key.setting if key is not None else "") or str(name).replace(".", "_")
        if ours in origin:
            problems.append(f"{name!r} and {origin[ours]!r} are the same setting: remove one")
            continue
        origin[ours] = name
        if key is None and ours not in SETTINGS:
            ours = name
        with _collected(problems):
            convert = None if key is None else key.convert
            settings[ours] = value if convert is None else convert(name, value)
    if isinstance(settings.get("bootstrap_servers"), str):
        settings["bootstrap_servers"] = _with_ports(settings["bootstrap_servers"])
    partitioner: AnyPartitioner | None = None
    derived: list[str] = []
    with _collected(problems):
        _level(special.pop("compression.level", None), settings)
    with _collected(problems):
        partitioner = _partitioner(special.pop("partitioner", _PARTITIONERS[0]), settings)
    with _collected(problems):
        _oidc(special, settings)
    _cleartext(settings, derived)
    with _collected(problems):
        _request_timeout(settings, derived)
    return LibrdkafkaSettings(settings, partitioner, tuple(without_effect), tuple(derived))


@contextlib.contextmanager
def _collected(problems: list[str]) -> Iterator[None]:
    """Add the text of a `ConfigError` to `problems`."""
    try:
        yield
    except ConfigError as error:
        problems.append(str(error))


def _with_ports(servers: str) -> list[str]:
    from aiokprod._compat.aiokafka_settings import bootstrap_servers

    return bootstrap_servers(servers)


def _level(level: Any, settings: dict[str, Any]) -> None:
    if level is None or _number("compression.level", level) == -1:
        return
    codec = _text(settings.get("compression_type", "none"))
    if codec in LEVELS:
        settings[f"compression_{codec}_level"] = _number("compression.level", level)


def _partitioner(name: Any, settings: dict[str, Any]) -> AnyPartitioner | None:
    if name == "consistent_random":
        return ConsistentRandomPartitioner()
    if name == "murmur2_random":
        return None
    if name == "random":
        settings["partitioner_ignore_keys"] = True
        return None
    raise ConfigError(
        f"partitioner={name!r} is not supported: choose {', '.join(_PARTITIONERS)}, or pass a "
        "callable to Producer as partitioner=..."
    )


def _request_timeout(settings: dict[str, Any], derived: list[str]) -> None:
    """Limit the request timeout to message.timeout.ms minus linger.ms. librdkafka likewise limits
    it to the remaining part of message.timeout.ms."""
    delivery = settings.get("delivery_timeout_ms")
    if delivery is None:
        return
    request = _number("request.timeout.ms", settings.get("request_timeout_ms", 30_000))
    linger = _linger("linger.ms", settings.get("linger_ms", 5))
    left = _number("message.timeout.ms", delivery) - linger
    if 0 < left < request:
        settings["request_timeout_ms"] = left
        derived.append(
            f"request_timeout_ms={left}: message.timeout.ms without linger.ms, because a request "
            f"has no more time than its records, as in librdkafka; otherwise it would be {request}"
        )


def _oidc(special: dict[str, Any], settings: dict[str, Any]) -> None:
    method = _text(special.pop("sasl.oauthbearer.method", "default"))
    values: dict[str, Any] = {}
    for name, value in special.items():
        if _OIDC_KEYS[name] in values:
            raise ConfigError(f"{name!r} is given under two names: remove one")
        values[_OIDC_KEYS[name]] = value
    if method not in ("default", "oidc"):
        raise ConfigError(f"sasl.oauthbearer.method={method!r}: choose default or oidc")
    if method == "default":
        if values:
            raise ConfigError(f"{next(iter(special))!r} needs sasl.oauthbearer.method=oidc")
        return
    for part, name in (
        ("url", "sasl.oauthbearer.token.endpoint.url"),
        ("client", "sasl.oauthbearer.client.id"),
        ("secret", "sasl.oauthbearer.client.secret"),
    ):
        if not values.get(part):
            raise ConfigError(f"sasl.oauthbearer.method=oidc needs {name}")
    settings["sasl_token_provider"] = OidcTokens(
        values["url"], values["client"], Secret(values["secret"]), scope=values.get("scope")
    )


def _cleartext(settings: dict[str, Any], derived: list[str]) -> None:
    """Allow PLAIN and OAUTHBEARER without TLS, like librdkafka."""
    if (
        _text(settings.get("security_protocol", "")) == "sasl_plaintext"
        and _text(settings.get("sasl_mechanism", "")) in ("plain", "oauthbearer")
        and "sasl_allow_cleartext" not in settings
    ):
        settings["sasl_allow_cleartext"] = True
        derived.append(
            "sasl_allow_cleartext=True: credentials are sent without encryption, as in librdkafka"
        )


def rows() -> list[str]:
    """Return the rows of the table in docs/migration/confluent-kafka.md."""
    made = []
    for name, key in {**KEYS, **_PYTHON_KEYS}.items():
        note = key.note
        if key.accepted and key.support is Support.REFUSED:
            note += f"; `{key.accepted[0]}` is accepted"
        ours = key.setting or (name.replace(".", "_") if key.support is Support.SAME else "")
        made.append(f"| `{name}` | {key.support.value} | {f'`{ours}`' if ours else ''} | {note} |")
    return made
