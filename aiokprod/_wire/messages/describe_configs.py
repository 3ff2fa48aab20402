"""DescribeConfigs (API key 32): effective settings of topics and brokers."""

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
    """A resource to describe."""

    resource_type: int = int8()  # 2 = topic, 4 = broker
    resource_name: str = string()  # topic name or node id
    configuration_keys: Sequence[str] | None = nullable_string_array()  # None = all


@dataclass(frozen=True, slots=True)
class DescribeConfigsRequest(Message):
    """Resources to describe. Settings of a broker must be requested from that broker."""

    api_key = 32
    min_version = 1
    max_version = 4
    flexible_version = 4

    resources: Sequence[DescribeConfigsResource] = array(DescribeConfigsResource)
    include_synonyms: bool = boolean("1+")
    include_documentation: bool = boolean("3+")


@dataclass(frozen=True, slots=True)
class DescribeConfigsSynonym(Struct):
    """A less specific setting, which applies if the more specific setting is removed."""

    name: str = string("1+")
    value: str | None = nullable_string("1+", nullable="0+")
    source: int = int8("1+")


@dataclass(frozen=True, slots=True)
class DescribeConfigsResourceResult(Struct):
    """One setting."""

    name: str = string()
    value: str | None = nullable_string()  # None if it is sensitive
    read_only: bool = boolean()
    config_source: int = int8("1+", default=-1, ignorable=True)
    is_sensitive: bool = boolean()
    synonyms: Sequence[DescribeConfigsSynonym] = array(DescribeConfigsSynonym, "1+", ignorable=True)
    config_type: int = int8("3+", ignorable=True)
    documentation: str | None = nullable_string("3+", ignorable=True)


@dataclass(frozen=True, slots=True)
class DescribeConfigsResult(Struct):
    """The settings of one resource."""

    error_code: int = int16()
    error_message: str | None = nullable_string()
    resource_type: int = int8()
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
