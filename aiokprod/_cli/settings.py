"""Settings of the command line. `-b` takes precedence over `-X`, and `-X` over the file."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

from aiokprod.config import ProducerConfig
from aiokprod.errors import ConfigError


def read_file(path: str) -> dict[str, Any]:
    """Return the settings in a file: JSON if the name ends in `.json`, else Java properties.

    Raises:
        ConfigError: the file cannot be read, or does not have this format.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8"
        raise ConfigError(f"{path}: {reason}") from None
    if path.endswith(".json"):
        try:
            found = json.loads(text)
        except json.JSONDecodeError as error:
            raise ConfigError(f"{path}, line {error.lineno}: not JSON ({error.msg})") from None
        if not isinstance(found, dict):
            raise ConfigError(f"{path}: must be a JSON object with a member for each setting")
        return found
    return _properties(path, text)


def _properties(path: str, text: str) -> dict[str, Any]:
    """Parse `name=value` lines. `#` and `!` begin comments. A backslash at the end of a line
    continues the line."""
    found: dict[str, Any] = {}
    joined = ""
    for number, line in enumerate(text.splitlines(), start=1):
        joined += line.strip()
        if joined.endswith("\\"):
            joined = joined[:-1]
            continue
        entry, joined = joined, ""
        if not entry or entry[0] in "#!":
            continue
        name, separator, value = entry.partition("=")
        if not separator:
            name, separator, value = entry.partition(":")
        if not separator:
            raise ConfigError(f"{path}, line {number}: write name=value")
        found[name.strip()] = value.strip()
    return found


def config_of(options: Namespace, **more: Any) -> ProducerConfig:
    """Return the configuration for the options of a command.

    Args:
        more: settings that the command sets; `-X` and `-b` override them.

    Raises:
        ConfigError: a setting is unknown or invalid, or there are no bootstrap servers.
    """
    mapping = mapping_of(options, **more)
    if not {"bootstrap.servers", "bootstrap_servers"} & mapping.keys():
        raise ConfigError("no brokers: give -b HOST:PORT, or bootstrap.servers in the file of -F")
    return ProducerConfig.from_mapping(mapping)


def is_given(options: Namespace, name: str) -> bool:
    """Return True if a setting is given in the file or with `-X`."""
    return bool({name, name.replace("_", ".")} & mapping_of(options).keys())


def mapping_of(options: Namespace, **more: Any) -> dict[str, Any]:
    """Return the settings for the options of a command by their names; see `config_of`."""
    mapping: dict[str, Any] = read_file(options.config) if options.config else {}
    given = dict(more)
    for text in options.set:
        name, separator, value = text.partition("=")
        if not separator:
            raise ConfigError(f"-X {name}: write NAME=VALUE")
        given[name] = value
    if options.bootstrap_servers:
        given["bootstrap_servers"] = options.bootstrap_servers
    for name, value in given.items():
        for spelling in (name, name.replace("_", "."), name.replace(".", "_")):
            mapping.pop(spelling, None)
        mapping[name] = value
    return mapping
