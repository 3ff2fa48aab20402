"""The options of the sink and of the audit reader: names, checks, and a mapping that masks secrets.

This module uses neither the network nor Spark. Keys are case-insensitive, as in Spark; values are
text.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, Self

from aiokprod._redaction import redacted
from aiokprod.config import ProducerConfig
from aiokprod.errors import ConfigError
from aiokprod.records import validate_topic

MASK: Final = "***"
"""Shown instead of a secret, as in the repr of a `Secret`."""
KAFKA_PREFIX: Final = "kafka."
SECRET_PREFIX: Final = "secret."  # noqa: S105
"""Optional prefix of any kafka.* option; Spark hides the values of options with such names."""
SPARK_FILES: Final = "sparkfiles:"
AT_LEAST_ONCE: Final = "at_least_once"
TRANSACTIONAL: Final = "transactional"
EXACTLY_ONCE: Final = "exactly_once"
FAIL: Final = "fail"
DEFAULT_TRANSACTION_TIMEOUT_MS: Final = 900_000
"""Default transaction timeout: the default of the brokers' limit, transaction.max.timeout.ms."""
BATCH_SIZE: Final = 512 * 1024
"""Default batch_size in bytes. A task sends tables of thousands of rows, so latency per row does
not matter. Its batches are four times as large as those of an interactive producer, which reduces
the cost per batch in the client and in the broker. The size is half of the topic default of
max.message.bytes."""
_BATCHES_AT_LEAST: Final = 8
"""Number of batches that must fit into the buffer. With fewer, filling a batch would have to wait
until another batch is sent."""

# Spark passes these options of its own to the sink.
_SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname", "includeheaders"})

_REFUSED: Final = {
    "kafka.key.serializer": "keys are the bytes of the key column: serialise them in the query",
    "kafka.value.serializer": "values are the bytes of the value column: serialise them in the "
    "query",
    "kafka.partitioner.class": "class names are not loaded: fill a partition column, or leave it "
    "to the built-in partitioner (Java's murmur2)",
    "kafka.interceptor.classes": "class names are not loaded: do it in the query",
    "kafka.transactional.id": "each task needs a unique id: use transactionalIdPrefix with "
    "delivery=transactional or exactly_once",
    "kafka.group.id": "it is a consumer setting: leave it out",
    "kafka.buffer.memory": "use maxBufferedBytes",
    "path": "this sink writes to Kafka topics: use .save() without a path, and "
    ".option('topic', ...)",
}
_HIDDEN_KAFKA: Final = SECRET_PREFIX + KAFKA_PREFIX
_SHOWN_KEY: Final = "kafka.ssl.keystore.key"
_SECRET_NAME: Final = re.compile(r"password|secret|token|jaas|credential|\.key$|keystore\.key|"
                                 r"certificate", re.IGNORECASE)  # fmt: skip

_JAAS: Final = "kafka.sasl.jaas.config"
_JAAS_OPTIONS: Final = {
    "plainloginmodule": "kafka.sasl.mechanism=PLAIN, kafka.sasl.username and kafka.sasl.password",
    "scramloginmodule": "kafka.sasl.mechanism=SCRAM-SHA-256 or SCRAM-SHA-512, kafka.sasl.username "
    "and kafka.sasl.password; with tokenauth=true also kafka.sasl.delegation.token=true",
    "krb5loginmodule": "kafka.sasl.mechanism=GSSAPI, kafka.sasl.kerberos.service.name, "
    "kafka.sasl.kerberos.principal and kafka.sasl.kerberos.keytab",
    "iamloginmodule": "kafka.sasl.mechanism=AWS_MSK_IAM",
}
"""The options that replace a JAAS configuration, by the class name of its login module."""
_JAAS_ALL: Final = (
    "kafka.sasl.mechanism, and for PLAIN and SCRAM kafka.sasl.username and kafka.sasl.password, "
    "for GSSAPI kafka.sasl.kerberos.*"
)
_LOGIN_MODULE: Final = re.compile(r"(\w+)\s+(?:required|requisite|sufficient|optional)\b", re.I)

_MEANT: Final = re.compile(r"did you mean '([^']+)'")


class SealedOptions(Mapping[str, str]):
    """A mapping of options whose repr masks every value that may be a secret.

    Pickling keeps all values, because tasks need them. Logs, reprs and tracebacks with local
    variables show the masked form.
    """

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = _Masked({key.lower(): value for key, value in values.items()})

    def __getitem__(self, key: str) -> str:
        return self._values[key.lower()]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return repr(self._values)

    def __reduce__(self) -> tuple[Any, ...]:
        return SealedOptions, (dict(self._values),)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SealedOptions) and self._values == other._values

    def __hash__(self) -> int:
        return hash(tuple(sorted(self._values.items())))


class _Masked(dict[str, str]):
    """A dict whose repr masks secrets."""

    def __repr__(self) -> str:
        shown = {key: MASK if is_secret(key, value) else value for key, value in self.items()}
        return repr(shown)


def plain_name(key: str) -> str:
    """Return an option's name in lower case, without surrounding blanks and prefix "secret."."""
    name = key.strip().lower()
    if name.startswith(_HIDDEN_KAFKA):
        name = name.removeprefix(SECRET_PREFIX)
    if name.startswith(KAFKA_PREFIX):
        name = KAFKA_PREFIX + name.removeprefix(KAFKA_PREFIX).strip()
    return name


def refuse_shown_key(options: Mapping[str, str], where: str) -> None:
    """Reject a private key in an option whose value Spark would show.

    Args:
        where: name of the object to which the options belong, for the error text.

    Raises:
        ConfigError: there is such an option. The text names the option to use instead.
    """
    for key in options:
        name = key.strip().lower()
        if not name.startswith(_HIDDEN_KAFKA) and plain_name(name).replace("_", ".") == _SHOWN_KEY:
            raise ConfigError(
                f"option {_SHOWN_KEY!r}: Spark writes the options of {where} into plans, event "
                f"logs and errors, and may not hide this one. Name it '{SECRET_PREFIX}{_SHOWN_KEY}'"
                ", which it hides, or use a file, kafka.ssl.keystore.location"
            )


def is_secret(key: str, value: str) -> bool:
    """Return True if the value of an option must not be shown. Such an option is a secret or
    unknown (a misspelt option may hold a secret), or its value is a URL with user information."""
    name = plain_name(key)
    setting = name.removeprefix(KAFKA_PREFIX).replace("_", ".")
    if name not in _OWN_NAMES and setting not in _SETTINGS:
        return True
    return _SECRET_NAME.search(setting) is not None or (setting == _SERVERS and "@" in value)


def _choice(*allowed: str) -> Any:
    return field(default=allowed[0], metadata={"choice": allowed})


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The checked options of one write.

    Attributes:
        kafka: producer settings by their Java names, without "kafka.", with masked values.
        topic: overrides the topic column. None uses the column.
        delivery: at_least_once, transactional (batch) or exactly_once (stream).
        transactional_id_prefix: prefix of the tasks' transactional ids.
        batch_id, query_id: set by `foreach_batch`; None uses those of the Spark task.
        max_buffered_bytes: maximum number of unacknowledged bytes of a task.
        max_transactional_tasks: number of tasks above which a commit logs a warning.
        missing_markers: "warn" or "fail": the reaction if Kafka has no marker of an earlier batch.
        unknown_columns: "error", or "ignore" like the JVM sink.
        preflight: check reachability, topic and authorisation on the driver first.
        reuse_producer: keep the producer of a process for its next task.
        loop: "auto" (uvloop if installed), "asyncio" or "uvloop".
        audit_headers: add a header akp.id to every record.
        report_path: folder on the driver host that gets one JSON line per job or batch.
    """

    kafka: SealedOptions
    topic: str | None = None
    delivery: str = _choice(AT_LEAST_ONCE, TRANSACTIONAL, EXACTLY_ONCE)
    transactional_id_prefix: str | None = None
    batch_id: int | None = None
    query_id: str | None = None
    max_buffered_bytes: int = 32 * 1024 * 1024
    max_transactional_tasks: int = 64
    missing_markers: str = _choice("warn", FAIL)
    unknown_columns: str = _choice("error", "ignore")
    preflight: bool = True
    reuse_producer: bool = True
    loop: str = _choice("auto", "asyncio", "uvloop")
    audit_headers: bool = False
    report_path: str | None = None

    @classmethod
    @redacted(ConfigError)
    def parse(cls, options: Mapping[str, str]) -> Self:
        """Parse the options that Spark passes.

        Raises:
            ConfigError: an option is unknown, not supported, missing or wrong. The text names the
                option and the fix.
        """
        kafka: dict[str, str] = {}
        values: dict[str, Any] = {}
        for key, text in options.items():
            name = plain_name(key)
            if name.startswith(KAFKA_PREFIX):
                name = name.replace("_", ".")  # both spellings name the same setting
            if name in _REFUSED:
                raise ConfigError(f"option {name!r} is refused: {_REFUSED[name]}")
            if name == _JAAS:
                raise ConfigError(f"option {name!r} is refused: {_translate_jaas(text)}")
            if name.startswith(KAFKA_PREFIX):
                setting = name.removeprefix(KAFKA_PREFIX)
                if setting in kafka:
                    raise ConfigError(f"option {name!r} is given twice: leave one out")
                kafka[setting] = text
            elif name in _FIELD_OF:
                attribute = _FIELD_OF[name]
                values[attribute] = _PARSERS[attribute](_NAMES[attribute], text)
            elif name not in _SPARKS_OWN:
                raise _unknown(key)
        parsed = cls(kafka=SealedOptions(kafka), **values)
        config = parsed.producer_config()
        if config.required_acks != -1 and config.enable_idempotence is None:
            raise ConfigError(
                f"option 'kafka.acks' is {config.acks}, which turns idempotence off: rows can be "
                "lost and doubled. Use kafka.acks=all; or set kafka.enable.idempotence=false too, "
                "if that is wanted"
            )
        parsed._check_delivery()
        return parsed

    def _check_delivery(self) -> None:
        transactional = self.delivery != AT_LEAST_ONCE
        if transactional and self.transactional_id_prefix is None:
            raise ConfigError(
                f"delivery={self.delivery} needs the option transactionalIdPrefix: a name of this "
                "query, the same after a restart and used by nothing else"
            )
        if not transactional and self.transactional_id_prefix is not None:
            raise ConfigError(
                "transactionalIdPrefix has no meaning with delivery=at_least_once: leave it out, "
                "or set delivery to transactional (batch) or exactly_once (stream)"
            )
        if transactional and not self.producer_config().idempotent:
            raise ConfigError(
                f"delivery={self.delivery} needs kafka.acks=all and idempotence: leave out "
                "kafka.acks, kafka.retries and kafka.enable.idempotence"
            )

    @redacted(ConfigError)
    def producer_config(self, **more: Any) -> ProducerConfig:
        """Return the producer's configuration. `more` contains settings by their Python names.

        Raises:
            ConfigError: a kafka.* option is unknown or wrong. The text contains its full name.
        """
        settings: dict[str, object] = {
            key: _path(value) if key.endswith(".location") else value
            for key, value in self.kafka.items()
        }
        if "bootstrap.servers" not in settings:
            raise ConfigError(
                "option 'kafka.bootstrap.servers' is missing: name at least one \"host:port\""
            )
        settings["buffer.memory"] = self.max_buffered_bytes
        largest = min(BATCH_SIZE, self.max_buffered_bytes // _BATCHES_AT_LEAST)
        settings.setdefault("batch.size", largest)
        if self.delivery != AT_LEAST_ONCE:
            settings.setdefault("transaction.timeout.ms", DEFAULT_TRANSACTION_TIMEOUT_MS)
        try:
            return ProducerConfig.from_mapping(settings | more)
        except ConfigError as error:
            raise ConfigError(_with_prefix(error.message, settings)) from None


def _path(value: str) -> str:
    """Return the path of a file. "sparkfiles:<name>" names a file distributed with
    `spark.addArtifact`, `SparkContext.addFile` or `--files`."""
    if not value.startswith(SPARK_FILES):
        return value
    from pyspark import SparkFiles

    return str(SparkFiles.get(value.removeprefix(SPARK_FILES)))


_NAMES: Final = {
    "topic": "topic",
    "delivery": "delivery",
    "transactional_id_prefix": "transactionalIdPrefix",
    "batch_id": "batchId",
    "query_id": "queryId",
    "max_buffered_bytes": "maxBufferedBytes",
    "max_transactional_tasks": "maxTransactionalTasks",
    "missing_markers": "missingMarkers",
    "unknown_columns": "unknownColumns",
    "preflight": "preflight",
    "reuse_producer": "reuseProducer",
    "loop": "loop",
    "audit_headers": "auditHeaders",
    "report_path": "reportPath",
}
"""Option by field of `SinkOptions`."""
_FIELD_OF: Final = {option.lower(): name for name, option in _NAMES.items()}
_SERVERS: Final = "bootstrap.servers"
_AUDITS: Final = ("isolation", "values", "headers", "offsetspertask")
_OWN_NAMES: Final = frozenset({*_FIELD_OF, *_AUDITS, *_SPARKS_OWN, "path"})
"""Options whose names do not begin with "kafka."; none holds a secret."""
_SETTINGS: Final = frozenset(one.name.replace("_", ".") for one in fields(ProducerConfig))
_LEAST: Final = {"batch_id": 0, "max_buffered_bytes": 1024 * 1024, "max_transactional_tasks": 1}


def _topic(option: str, text: str) -> str:
    try:
        return validate_topic(text.strip())
    except ConfigError as error:
        raise ConfigError(f"option {option!r}: {error.message}") from None


def _text(option: str, text: str) -> str:
    if not text.strip():
        raise ConfigError(f"option {option!r} must not be empty")
    return text.strip()


def _flag(option: str, text: str) -> bool:
    word = text.strip().lower()
    if word not in ("true", "false"):
        raise ConfigError(f"option {option!r} is {text!r}: use true or false")
    return word == "true"


def parse_count(option: str, text: str, least: int) -> int:
    """Parse an integer ≥ `least`.

    Raises:
        ConfigError: the text is not such a number.
    """
    try:
        number = int(text.strip())
    except ValueError:
        number = least - 1
    if number < least:
        raise ConfigError(f"option {option!r} is {text!r}: use a whole number of {least} or more")
    return number


def parse_choice(option: str, text: str, allowed: tuple[str, ...]) -> str:
    """Parse one of the allowed words.

    Raises:
        ConfigError: the text is not an allowed word.
    """
    word = text.strip().lower()
    if word not in allowed:
        raise ConfigError(f"option {option!r} is {text!r}: use " + " or ".join(allowed))
    return word


def _parser(name: str, metadata: Mapping[str, Any]) -> Any:
    if "choice" in metadata:
        return lambda option, text: parse_choice(option, text, metadata["choice"])
    if name in _LEAST:
        return lambda option, text: parse_count(option, text, _LEAST[name])
    if name in ("preflight", "reuse_producer", "audit_headers"):
        return _flag
    return _topic if name == "topic" else _text


_PARSERS: Final = {
    one.name: _parser(one.name, one.metadata) for one in fields(SinkOptions) if one.name in _NAMES
}


def _unknown(key: str) -> ConfigError:
    known = {name.lower(): name for name in _NAMES.values()}
    settings = {
        f"{KAFKA_PREFIX}{one.name.replace('_', '.')}": f"{KAFKA_PREFIX}{one.name.replace('_', '.')}"
        for one in fields(ProducerConfig)
    }
    if f"{KAFKA_PREFIX}{key.lower()}" in settings:
        return ConfigError(
            f"option {key!r} is not one of the sink: did you mean '{KAFKA_PREFIX}{key.lower()}'?"
        )
    near = difflib.get_close_matches(key.lower(), [*known, *settings], n=1)
    if near:
        return ConfigError(
            f"option {key!r} is not one of the sink: did you mean {(known | settings)[near[0]]!r}?"
        )
    return ConfigError(f"option {key!r} is not one of the sink: use {', '.join(known.values())}, "
                       "or a producer setting as kafka.<name>")  # fmt: skip


def _translate_jaas(text: str) -> str:
    """Return the options that replace a JAAS configuration. Only its class name is read."""
    found = _LOGIN_MODULE.search(text)
    module = "" if found is None else found[1].lower()
    return f"JAAS is Java's. Set these options instead: {_JAAS_OPTIONS.get(module, _JAAS_ALL)}"


def _with_prefix(message: str, settings: Mapping[str, object]) -> str:
    """Return the message with the setting's name in the user's spelling. It contains no secrets."""
    message = _MEANT.sub(rf"did you mean '{KAFKA_PREFIX}\1'", message)
    for name in settings:
        for spelt in (repr(name), name.replace(".", "_")):
            if message.startswith(spelt):
                return f"option '{KAFKA_PREFIX}{name}'" + in_options(message[len(spelt) :])
    return f"kafka options: {in_options(message)}"


_OPTION_OF: Final = {
    one.name: f"{KAFKA_PREFIX}{one.name.replace('_', '.')}"
    for one in fields(ProducerConfig)
    if "_" in one.name
} | {"buffer_memory": "maxBufferedBytes", "transactional_id": "transactionalIdPrefix"}
"""Option of the sink by Python name of the setting. Names without "_" are left out, because they
may be ordinary words."""
_SETTING: Final = re.compile(r"(?<![\w.'-])(?:" + "|".join(_OPTION_OF) + r")(?![\w.'-])")


def in_options(message: str) -> str:
    """Replace the Python names of settings in a producer's message with names of sink options."""
    return _SETTING.sub(lambda found: _OPTION_OF[found[0]], message)
