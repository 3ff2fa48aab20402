"""The settings of `Producer` as keyword arguments, for type checkers.

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

    client_id: str | None
    acks: Literal[0, 1, -1, "all", "0", "1", "-1"]
    enable_idempotence: bool | None
    retries: int
    max_in_flight_requests_per_connection: int
    delivery_timeout_ms: int
    request_timeout_ms: int
    linger_ms: int
    adaptive_linger: bool
    batch_size: int
    elastic_batch_size: int
    buffer_memory: int
    max_block_ms: int
    close_timeout_ms: int
    max_request_size: int
    compression_type: Literal["none", "gzip", "snappy", "lz4", "zstd"]
    compression_gzip_level: int
    compression_lz4_level: int
    compression_zstd_level: int
    topic_profiles: Mapping[str, TopicProfile] | Sequence[tuple[str, TopicProfile]]
    partitioner_adaptive_partitioning_enable: bool
    partitioner_availability_timeout_ms: int
    partitioner_ignore_keys: bool
    transactional_id: str | None
    transaction_timeout_ms: int
    metadata_max_age_ms: int
    metadata_max_idle_ms: int
    metadata_recovery_strategy: Literal["rebootstrap", "none"]
    metadata_recovery_rebootstrap_trigger_ms: int
    allow_auto_create_topics: bool
    enable_metrics_push: bool
    client_dns_lookup: Literal["use_all_dns_ips"]
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    reconnect_backoff_ms: int
    reconnect_backoff_max_ms: int
    socket_connection_setup_timeout_ms: int
    socket_connection_setup_timeout_max_ms: int
    connections_max_idle_ms: int
    send_buffer_bytes: int
    receive_buffer_bytes: int
    receive_max_bytes: int
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
    ssl_context: SSLContext | None
    ssl_truststore_location: str | None
    ssl_truststore_certificates: str | None
    ssl_crl_location: str | None
    ssl_keystore_location: str | None
    ssl_keystore_certificate_chain: str | None
    ssl_keystore_key: str | Secret | None
    ssl_key_location: str | None
    ssl_key_password: str | Secret | None
    ssl_endpoint_identification_algorithm: str
    sasl_mechanism: (
        Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI", "AWS_MSK_IAM"]
        | None
    )
    sasl_username: str | None
    sasl_password: str | Secret | None
    sasl_credentials: Credentials | None
    sasl_delegation_token: bool
    sasl_token_provider: TokenProvider | Callable[[], Awaitable[str | Secret]] | None
    sasl_kerberos_service_name: str
    sasl_kerberos_principal: str | None
    sasl_kerberos_keytab: str | None
    sasl_allow_cleartext: bool


class Settings(ProducerSettings):
    """The keyword arguments of `Producer`, without those that are objects; see `ProducerConfig`."""

    bootstrap_servers: str | Sequence[str]
