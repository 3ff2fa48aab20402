"""DescribeConfigs (API key 32): configuration of topics and brokers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aiokprod._wire.message import Message
from aiokprod._wire.message_schema import (
    Struct,
    array,
    boolean,
    int8,
    int16,
    int32,
    nullable_string,
    nullable_string_array,
    string,
)


@dataclass(frozen=True, slots=True)
class DescribeConfigsResource(Struct):
    """One topic or broker and the keys wanted."""

    resource_type: int = int8()  # 2 = topic, 4 = broker, 8 = broker logger
    resource_name: str = string()
    configuration_keys: Sequence[str] | None = nullable_string_array()  # null = all


@dataclass(frozen=True, slots=True)
class DescribeConfigsRequest(Message):
    """Resources to describe."""

    api_key = 32
    min_version = 1
    max_version = 4
    flexible_version = 4

    resources: Sequence[DescribeConfigsResource] = array(DescribeConfigsResource)
    include_synonyms: bool = boolean("1+")
    include_documentation: bool = boolean("3+")


@dataclass(frozen=True, slots=True)
class DescribeConfigsSynonym(Struct):
    """Where else the entry is set, most important first."""

    name: str = string("1+")
    value: str | None = nullable_string("1+", nullable="0+")
    source: int = int8("1+")


@dataclass(frozen=True, slots=True)
class DescribeConfigsResourceResult(Struct):
    """One configuration entry."""

    name: str = string()
    value: str | None = nullable_string()
    read_only: bool = boolean()
    # -1 = unknown, 1 = topic, 2-4 = broker, 5 = default
    config_source: int = int8("1+", default=-1, ignorable=True)
    is_sensitive: bool = boolean()
    synonyms: Sequence[DescribeConfigsSynonym] = array(DescribeConfigsSynonym, "1+", ignorable=True)
    config_type: int = int8("3+", ignorable=True)
    documentation: str | None = nullable_string("3+", nullable="0+", ignorable=True)


@dataclass(frozen=True, slots=True)
class DescribeConfigsResult(Struct):
    """Configuration of one resource."""

    error_code: int = int16()  # 0 = none
    error_message: str | None = nullable_string()
    resource_type: int = int8()  # 2 = topic, 4 = broker, 8 = broker logger
    resource_name: str = string()
    configs: Sequence[DescribeConfigsResourceResult] = array(DescribeConfigsResourceResult)


@dataclass(frozen=True, slots=True)
class DescribeConfigsResponse(Message):
    """One result per resource."""

    api_key = 32
    min_version = 1
    max_version = 4
    flexible_version = 4

    throttle_time_ms: int = int32()  # ms the client is asked to wait
    results: Sequence[DescribeConfigsResult] = array(DescribeConfigsResult)
