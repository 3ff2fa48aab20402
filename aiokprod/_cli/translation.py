"""Translates configurations of other clients, for `aiokprod config --from`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from aiokprod._config.fields import MISSING_SERVERS, unknown_key
from aiokprod._config.foreign_names import KAFKA_PYTHON, VALUES, dotted
from aiokprod.config import ProducerConfig
from aiokprod.errors import ConfigError

_NUMBERS: Final = ("_ms", "_size")
"""Suffixes of the names of aiokafka's integer arguments."""


@dataclass(slots=True)
class Translation:
    """A configuration that was translated to aiokprod's settings.

    Attributes:
        settings: the argument of `ProducerConfig.from_mapping`.
        arguments: other arguments of `Producer`, as Python text.
        remarks: settings without effect, and differences in behaviour.
        problems: refused settings with the reasons. If there are any, `settings` is incomplete.
    """

    settings: dict[str, Any] = field(repr=False)
    arguments: dict[str, str] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    problems: list[str] = field(default_factory=list)

    def checked(self, given: Iterable[str]) -> ProducerConfig | None:
        """Check every setting and return the configuration. If there are problems, add those of the
        individual settings to `problems` and return None.

        Args:
            given: the names in the file. Problems contain these names, not aiokprod's spelling.

        Raises:
            ConfigError: settings contradict each other.
        """
        checks = {one.name: one.metadata["check"] for one in dataclasses.fields(ProducerConfig)}
        spelled = {key.strip().replace(".", "_"): key.strip() for key in given}
        names = {key: key.strip().replace(".", "_") for key in self.settings}
        for key, value in self.settings.items():
            name = names[key]
            shown = spelled.get(name, name)
            if any(text.startswith(f"{shown}=") for text in self.problems):
                continue
            try:
                if name not in checks:
                    raise unknown_key(shown, checks)
                parsed = checks[name].parse(shown, value) if isinstance(value, str) else value
                checks[name].validate(shown, parsed)
            except ConfigError as error:
                self.problems.append(str(error))
        if self.problems:
            if "bootstrap_servers" not in names.values():
                self.problems.append(MISSING_SERVERS)
            return None
        return ProducerConfig.from_mapping(self.settings)


def translated(source: str, mapping: dict[str, Any]) -> Translation:
    """Translate the settings of a file.

    Args:
        source: "java", "librdkafka", "aiokafka" or "kafka-python".

    Raises:
        ConfigError: a setting is refused or invalid; the error text contains the reason. Refused
            settings of librdkafka are added to `problems` instead.
    """
    if source == "librdkafka":
        return _librdkafka(mapping)
    if source == "aiokafka":
        return _aiokafka(mapping)
    if source == "kafka-python":
        return _kafka_python(mapping)
    return Translation(dict(mapping))


def _librdkafka(mapping: dict[str, Any]) -> Translation:
    from aiokprod._compat.librdkafka_settings import translate

    problems: list[str] = []
    found = translate(mapping, problems)
    arguments = {}
    if found.partitioner is not None:
        arguments["partitioner"] = f"{type(found.partitioner).__name__}()"
    remarks = tuple(f"no effect: {text}" for text in found.without_effect)
    remarks += tuple(f"added: {text}" for text in found.derived)
    if "sasl_token_provider" in found.settings:
        remarks += ("sasl_token_provider: pass OidcTokens(url, client_id, client_secret)",)
    return Translation(found.settings, arguments, remarks, problems)


def _aiokafka(mapping: dict[str, Any]) -> Translation:
    from aiokprod._compat.aiokafka_settings import translate

    given = {name: _typed(name, value) for name, value in mapping.items()}
    found = translate(given, "aiokprod")
    return Translation(found.settings, {}, tuple(f"default: {text}" for text in found.differences))


def _typed(name: str, value: Any) -> Any:
    """Convert a value of a .properties file to the type of aiokafka's argument."""
    if not isinstance(value, str):
        return value
    if name == "enable_idempotence" and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if name == "acks" or name.endswith(_NUMBERS):
        try:
            return int(value)
        except ValueError:
            return value
    return value


def _kafka_python(mapping: dict[str, Any]) -> Translation:
    settings: dict[str, Any] = {}
    for name, value in mapping.items():
        key = dotted(name)
        # Keep names in `VALUES`: the configuration rejects them with advice on what to use.
        ours = name if key in VALUES else KAFKA_PYTHON.get(key) or name
        if key == "ssl.check.hostname":
            ours = "ssl_endpoint_identification_algorithm"
            value = "" if value in (False, "False", "false") else "https"
        if ours in settings:
            raise ConfigError(f"{name!r} and {ours!r} are the same setting: remove one")
        settings[ours] = value
    return Translation(settings)
