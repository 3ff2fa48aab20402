"""The producer's configuration: frozen, picklable data with Kafka's names in snake_case."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from ssl import SSLContext
from typing import Any, Final, Self

from aiokprod._config.fields import (
    CODEC_CHOICE,
    INT64_MAX,
    LEVELS,
    MISSING_SERVERS,
    Acks,
    Check,
    Choice,
    DefaultInt,
    Flag,
    IntRange,
    ServerList,
    Text,
    invalid_setting,
    parse_address,
    unknown_key,
)
from aiokprod._config.mechanisms import MECHANISMS
from aiokprod._config.profiles import (
    ProfilesCheck,
    check_profiles,
    default_elastic_batch_size,
)
from aiokprod._config.security import (
    CREDENTIALS,
    SERVICE_NAME,
    SSL_CONTEXT,
    HostCheck,
    PathText,
    Pem,
    ProviderCheck,
    SecretText,
    check_security,
)
from aiokprod._log_fields import log_fields
from aiokprod._redaction import redacted, redacted_init
from aiokprod._security.secret import MASK, Credentials, Secret
from aiokprod._security.token_provider import TokenProvider
from aiokprod.errors import ConfigError
from aiokprod.topic_profiles import TopicProfile

logger = logging.getLogger("aiokprod")

MAX_IN_FLIGHT_WITH_IDEMPOTENCE: Final = 5
"""Brokers remember the last five batches per producer and partition."""


def _setting(check: Check, default: object = dataclasses.MISSING, *, shown: bool = True) -> Any:
    return field(default=default, metadata={"check": check}, repr=shown)


def _int(default: int, low: int = 0) -> Any:
    """A setting of Kafka's type INT."""
    return _setting(IntRange(low), default)


def _long(default: int, low: int = 0) -> Any:
    """A setting of Kafka's type LONG."""
    return _setting(IntRange(low, INT64_MAX), default)


def _flag(default: bool) -> Any:
    return _setting(Flag(), default)


@redacted_init
@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig:
    """All settings of a producer. Defaults are those of the Java client 4.x unless noted.

    Times are whole milliseconds, sizes whole bytes.

    Attributes:
        bootstrap_servers: "host:port", several with commas, or a list; any subset of the brokers.
            Used until the first metadata response and for rebootstrapping.
        client_id: name in broker logs, metrics and quotas; None generates "aiokprod-N".
        acks: 0 (do not wait), 1 (leader) or "all" (all in-sync replicas).
        enable_idempotence: None means True unless `acks` or `retries` rule it out.
        retries: maximum number of attempts after the first; normally delivery_timeout_ms ends them
            earlier. Does not apply to metadata requests.
        max_in_flight_requests_per_connection: 1 or more; at most 5 with idempotence.
        delivery_timeout_ms: limit from the creation of a record's batch to the record's outcome,
            including all retries; at least linger_ms + request_timeout_ms.
        request_timeout_ms: limit for a response, after which the connection is closed.
        linger_ms: maximum time a batch waits for more records.
        adaptive_linger: a batch is sent at once while its leader has no Produce request in flight;
            False waits for linger_ms in any case, as Java does. (Java has no such setting.) Batches
            of a topic whose profile has a `linger_ms` always wait for that time.
        batch_size: target size of a batch; 0 sends records one by one. (Java: 16384. Here that
            would divide the throughput by 3.5, and a large value costs little, because memory is
            counted by bytes used, not by batch capacity.)
        elastic_batch_size: size up to which a batch may grow while it waits behind another batch of
            its partition. This ends for a topic when a broker rejects one of its batches as too
            large. Values up to batch_size, such as 0, turn it off. Should not exceed
            max.message.bytes of the topics, because a larger batch is rejected and sent again in
            parts. With a transactional_id the default is 8 * batch_size, at most max_request_size.
            (Java has no such setting.)
        buffer_memory: maximum total size of the records without an outcome, in bytes.
        max_block_ms: maximum time a call waits for metadata and memory together.
        close_timeout_ms: maximum time that the end of ``async with`` waits for the outcomes of
            pending records; -1 sets no limit. Does not apply to `close()`. The default is shorter
            than the 30 s after which Kubernetes and gunicorn kill a process. (Java: none.)
        max_request_size: maximum size of a request and of one record.
        compression_type: "none", "gzip", "snappy" (needs the extra), "lz4" or "zstd".
        compression_gzip_level: 1 to 9, or -1 for zlib's default.
        compression_lz4_level: 1 to 17.
        compression_zstd_level: -131072 to 22.
        topic_profiles: other settings for some topics: a mapping from patterns to `TopicProfile`. A
            pattern is a topic name in which ``*`` stands for any characters or none, and ``?`` for
            one. The first matching pattern applies. Stored as a tuple of pairs. (Java: none.)
        partitioner_adaptive_partitioning_enable: keyless records favour partitions with short
            queues (KIP-794).
        partitioner_availability_timeout_ms: avoid partitions whose broker has accepted no request
            for this long; 0 turns this off.
        partitioner_ignore_keys: distribute keyed records like keyless ones.
        transactional_id: enables transactions.
        transaction_timeout_ms: the coordinator aborts a transaction that is open for longer.
        metadata_max_age_ms: age at which metadata is refreshed even without a change or an error.
        metadata_max_idle_ms: drop the metadata of a topic after this long without a send to it;
            5000 or more.
        metadata_recovery_strategy: the action if no known broker responds: "rebootstrap" or "none"
            (KIP-899).
        metadata_recovery_rebootstrap_trigger_ms: rebootstrap after this long without a response to
            a metadata request (KIP-1102).
        allow_auto_create_topics: request the creation of missing topics, which the brokers may
            refuse. (Java: always True for producers.)
        enable_metrics_push: push metrics to brokers that request them (KIP-714); see
            docs/observability.md. Brokers without a receiver of metrics request none.
        client_dns_lookup: "use_all_dns_ips": all addresses of a host name are tried.
        retry_backoff_ms, retry_backoff_max_ms: shortest and longest pause before a retry. The pause
            grows exponentially and has 20 % jitter (KIP-580).
        reconnect_backoff_ms, reconnect_backoff_max_ms: shortest and longest pause between attempts
            to connect to a broker. The pause grows exponentially and has 20 % jitter.
        socket_connection_setup_timeout_ms, socket_connection_setup_timeout_max_ms: initial and
            longest limit for name resolution, connecting and the TLS handshake together, and for
            the SASL authentication. The limit grows with each failure before the connection is
            ready for requests (KIP-601). ApiVersions gets request_timeout_ms if that is longer.
        connections_max_idle_ms: close connections that were unused for this long; -1 turns this
            off.
        send_buffer_bytes, receive_buffer_bytes: SO_SNDBUF, SO_RCVBUF; -1 is the system's default.
        receive_max_bytes: maximum size of a response, as a protection. (Java: no limit.)
        security_protocol: "PLAINTEXT", "SSL", "SASL_PLAINTEXT" or "SASL_SSL"; never negotiated.
        ssl_context: an `ssl.SSLContext`, instead of the following settings.
        ssl_truststore_location, ssl_truststore_certificates: PEM file or PEM text of the CAs to
            trust; the system's CAs if neither is set.
        ssl_crl_location: PEM file of revocation lists; every issuer of a broker's certificate must
            have one in it. (Java: none.)
        ssl_keystore_location, ssl_keystore_certificate_chain: PEM file or PEM text of the client
            certificate. The file may contain the key as well.
        ssl_keystore_key, ssl_key_location: the key of the client certificate, as PEM text or file.
        ssl_key_password: password of an encrypted key.
        ssl_endpoint_identification_algorithm: "https" compares host names with the certificate;
            "" accepts any name.
        sasl_mechanism: "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI" or
            "AWS_MSK_IAM".
        sasl_username, sasl_password: for PLAIN and SCRAM. With sasl_delegation_token, they are the
            token id and its HMAC. (Java: sasl.jaas.config.)
        sasl_credentials: user name and password in one object, replaceable at run time.
        sasl_delegation_token: the credentials are those of a delegation token (KIP-48).
        sasl_token_provider: for OAUTHBEARER, a `TokenProvider` or an async function that returns
            a token; for AWS_MSK_IAM, `MskIamTokens`.
        sasl_kerberos_service_name: for GSSAPI, first part of the brokers' principals.
        sasl_kerberos_principal, sasl_kerberos_keytab: the client's principal, and a keytab to fetch
            its tickets; without a keytab, the credential cache is used. (Names of librdkafka.)
        sasl_allow_cleartext: allow PLAIN, OAUTHBEARER and AWS_MSK_IAM without TLS.

    Raises:
        ConfigError: a value is out of range, or two settings exclude each other. The message names
            the setting, its value and how to fix it.

    Source: Java `ProducerConfig`, `CommonClientConfigs`.
    """

    bootstrap_servers: str | Sequence[str] = _setting(ServerList())
    client_id: str | None = _setting(Text(empty_is_none=True), None)

    acks: int | str = _setting(Acks(), "all")
    enable_idempotence: bool | None = _setting(Flag(optional=True), None)
    retries: int = _int(2**31 - 1)
    max_in_flight_requests_per_connection: int = _int(5, low=1)
    delivery_timeout_ms: int = _int(DefaultInt(120_000))
    request_timeout_ms: int = _int(30_000, low=1)

    linger_ms: int = _int(5)
    adaptive_linger: bool = _flag(True)
    batch_size: int = _int(131_072)
    elastic_batch_size: int = _int(DefaultInt(0))
    buffer_memory: int = _long(33_554_432, low=1)
    max_block_ms: int = _long(60_000)
    close_timeout_ms: int = _long(20_000, low=-1)
    max_request_size: int = _int(1_048_576, low=1)

    compression_type: str = _setting(CODEC_CHOICE, "none")
    compression_gzip_level: int = _setting(LEVELS["gzip"], -1)
    compression_lz4_level: int = _setting(LEVELS["lz4"], 9)
    compression_zstd_level: int = _setting(LEVELS["zstd"], 3)

    topic_profiles: Mapping[str, TopicProfile] | Sequence[tuple[str, TopicProfile]] = _setting(
        ProfilesCheck(), ()
    )

    partitioner_adaptive_partitioning_enable: bool = _flag(True)
    partitioner_availability_timeout_ms: int = _long(0)
    partitioner_ignore_keys: bool = _flag(False)

    transactional_id: str | None = _setting(Text(), None)
    transaction_timeout_ms: int = _int(60_000, low=1)

    metadata_max_age_ms: int = _long(300_000)
    metadata_max_idle_ms: int = _long(300_000, low=5_000)
    metadata_recovery_strategy: str = _setting(
        Choice(("rebootstrap", "none"), any_case=True), "rebootstrap"
    )
    metadata_recovery_rebootstrap_trigger_ms: int = _long(300_000)
    allow_auto_create_topics: bool = _flag(True)
    enable_metrics_push: bool = _flag(True)
    client_dns_lookup: str = _setting(
        Choice(("use_all_dns_ips",), later=("resolve_canonical_bootstrap_servers_only",)),
        "use_all_dns_ips",
    )

    retry_backoff_ms: int = _long(100)
    retry_backoff_max_ms: int = _long(1_000)
    reconnect_backoff_ms: int = _long(50)
    reconnect_backoff_max_ms: int = _long(1_000)
    socket_connection_setup_timeout_ms: int = _long(10_000, low=1)
    socket_connection_setup_timeout_max_ms: int = _long(30_000, low=1)
    connections_max_idle_ms: int = _long(540_000, low=-1)
    send_buffer_bytes: int = _int(131_072, low=-1)
    receive_buffer_bytes: int = _int(32_768, low=-1)
    receive_max_bytes: int = _int(16 * 1024 * 1024, low=1024)

    security_protocol: str = _setting(
        Choice(("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"), any_case=True), "PLAINTEXT"
    )
    ssl_context: SSLContext | None = _setting(SSL_CONTEXT, None)
    ssl_truststore_location: str | None = _setting(PathText(), None)
    ssl_truststore_certificates: str | None = _setting(Pem(), None)
    ssl_crl_location: str | None = _setting(PathText(), None)
    ssl_keystore_location: str | None = _setting(PathText(), None)
    ssl_keystore_certificate_chain: str | None = _setting(Pem(), None)
    ssl_keystore_key: Secret | None = _setting(SecretText(), None)
    ssl_key_location: str | None = _setting(PathText(), None)
    ssl_key_password: Secret | None = _setting(SecretText(), None)
    ssl_endpoint_identification_algorithm: str = _setting(HostCheck(), "https")
    sasl_mechanism: str | None = _setting(Choice(tuple(MECHANISMS), optional=True), None)
    sasl_username: str | None = _setting(Text(), None)
    sasl_password: Secret | None = _setting(SecretText(), None)
    sasl_credentials: Credentials | None = _setting(CREDENTIALS, None)
    sasl_delegation_token: bool = _flag(False)
    sasl_token_provider: TokenProvider | Callable[[], Awaitable[str | Secret]] | None = _setting(
        ProviderCheck(), None, shown=False
    )
    sasl_kerberos_service_name: str = _setting(Text(optional=False), SERVICE_NAME)
    sasl_kerberos_principal: str | None = _setting(Text(), None)
    sasl_kerberos_keytab: str | None = _setting(PathText("keytab"), None)
    sasl_allow_cleartext: bool = _flag(False)

    def __post_init__(self) -> None:
        for setting in dataclasses.fields(self):
            value = getattr(self, setting.name)
            normal = setting.metadata["check"].validate(setting.name, value)
            if normal is not value:
                object.__setattr__(self, setting.name, normal)
        check_security(self)
        self._check_idempotence()
        self._check_delivery_timeout()
        self._choose_elastic_batch_size()
        check_profiles(self)
        self._warn_of_fixed_backoff()

    @property
    def required_acks(self) -> int:
        """`acks` in the form of Produce requests: 0, 1 or -1."""
        return -1 if self.acks == "all" else int(self.acks)

    @property
    def idempotent(self) -> bool:
        """True if the producer is idempotent, either by the setting or by default."""
        if self.enable_idempotence is None:
            return not self._against_idempotence()
        return self.enable_idempotence

    def bootstrap_addresses(self) -> tuple[tuple[str, int], ...]:
        """Return host and port of each bootstrap server, in order."""
        return tuple(
            parse_address("bootstrap_servers", server) for server in self.bootstrap_servers
        )

    def effective(self) -> dict[str, object]:
        """Return the effective value of every setting, for `explain()`. Contains no secrets."""
        values: dict[str, object] = {}
        for setting in dataclasses.fields(self):
            value = getattr(self, setting.name)
            if isinstance(value, Secret):
                value = MASK
            values[setting.name] = int(value) if isinstance(value, DefaultInt) else value
        values["enable_idempotence"] = self.idempotent
        return values

    @classmethod
    @redacted(ConfigError)
    def from_mapping(cls, mapping: Mapping[str, object]) -> Self:
        """Create a configuration from Java's names ("linger.ms") or Python names; values may be
        strings.

        Raises:
            ConfigError: a value is wrong, or a key is unknown (the message names the most similar
                setting), is given in both spellings, or has no meaning here (the message names the
                replacement).
        """
        settings = {setting.name: setting for setting in dataclasses.fields(cls)}
        values: dict[str, Any] = {}
        for key, value in mapping.items():
            if not isinstance(key, str):
                raise ConfigError(f"configuration key {key!r} must be a str")
            name = key.strip().replace(".", "_")
            if name not in settings:
                raise unknown_key(key, settings)
            if name in values:
                raise ConfigError(f"{key!r} is given twice, in Java's and in this spelling")
            if isinstance(value, str):
                value = settings[name].metadata["check"].parse(name, value)
            values[name] = value
        if "bootstrap_servers" not in values:
            raise ConfigError(MISSING_SERVERS)
        return cls(**values)

    def _against_idempotence(self) -> list[str]:
        reasons = []
        if self.retries == 0:
            reasons.append("retries=0")
        if self.required_acks != -1:
            reasons.append(f"acks={self.acks}")
        return reasons

    def _check_idempotence(self) -> None:
        """Source: Java `ProducerConfig.postProcessAndValidateIdempotenceConfigs` (4.0)."""
        against = " and ".join(self._against_idempotence())
        if self.enable_idempotence and against:
            raise ConfigError(
                f"enable_idempotence=True excludes {against}: "
                'use acks="all" and retries of 1 or more, or turn idempotence off'
            )
        if self.transactional_id is not None and not self.idempotent:
            because = against or "enable_idempotence=False"
            raise ConfigError(
                f"transactional_id={self.transactional_id!r} needs idempotence, which {because} "
                "rules out: remove one of them"
            )
        in_flight = self.max_in_flight_requests_per_connection
        if self.idempotent and in_flight > MAX_IN_FLIGHT_WITH_IDEMPOTENCE:
            raise invalid_setting(
                "max_in_flight_requests_per_connection",
                in_flight,
                f"use at most {MAX_IN_FLIGHT_WITH_IDEMPOTENCE} with idempotence, "
                "or set enable_idempotence=False",
            )
        if self.enable_idempotence is None and against:
            logger.warning(
                "idempotence is off because of %s", against,
                extra=log_fields("setting_adjusted", setting="enable_idempotence"),
            )  # fmt: skip

    def _choose_elastic_batch_size(self) -> None:
        if isinstance(self.elastic_batch_size, DefaultInt):
            size = default_elastic_batch_size(
                self.batch_size,
                transactional=self.transactional_id is not None,
                max_request_size=self.max_request_size,
            )
            object.__setattr__(self, "elastic_batch_size", DefaultInt(size))

    def _check_delivery_timeout(self) -> None:
        """Source: Java `KafkaProducer.configureDeliveryTimeout`."""
        least = self.linger_ms + self.request_timeout_ms
        if self.delivery_timeout_ms >= least:
            return
        if not isinstance(self.delivery_timeout_ms, DefaultInt):
            raise invalid_setting(
                "delivery_timeout_ms",
                self.delivery_timeout_ms,
                f"use at least linger_ms + request_timeout_ms = {least}",
            )
        logger.warning(
            "delivery_timeout_ms is raised to linger_ms + request_timeout_ms = %d", least,
            extra=log_fields("setting_adjusted", setting="delivery_timeout_ms"),
        )  # fmt: skip
        object.__setattr__(self, "delivery_timeout_ms", DefaultInt(least))

    def _warn_of_fixed_backoff(self) -> None:
        """Source: Java `CommonClientConfigs.warnDisablingExponentialBackoff`."""
        for low, high in (
            ("retry_backoff_ms", "retry_backoff_max_ms"),
            ("reconnect_backoff_ms", "reconnect_backoff_max_ms"),
            ("socket_connection_setup_timeout_ms", "socket_connection_setup_timeout_max_ms"),
        ):
            if getattr(self, low) > getattr(self, high):
                logger.warning(
                    "%s=%d is more than %s=%d, which therefore applies from the first attempt",
                    low,
                    getattr(self, low),
                    high,
                    getattr(self, high),
                    extra=log_fields("setting_adjusted", setting=low),
                )
