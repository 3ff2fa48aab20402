"""Producer settings of other clients, and the fields of `ProducerConfig` that replace them.

Plain data. Names are in lower case with dots, as in properties files; aiokafka and kafka-python
write them with underscores. A name that is not listed but matches a field, such as `linger.ms` for
`linger_ms`, has the same meaning here. None stands for a setting without a field: an object is
passed to `Producer` instead, or there is no counterpart.

Sources: Java `ProducerConfig`, `CommonClientConfigs`, `SslConfigs` and `SaslConfigs` of Kafka 4.1;
CONFIGURATION.md of librdkafka 2.12; `AIOKafkaProducer` of aiokafka 0.14; `KafkaProducer` of
kafka-python 3.0.
"""

from __future__ import annotations

from typing import Final

JAVA: Final[dict[str, str | None]] = {
    "auto.include.jmx.reporter": None,
    "bootstrap.resolve.timeout.ms": "socket_connection_setup_timeout_ms",
    "client.rack": None,
    "config.providers": None,
    "interceptor.classes": None,
    "key.serializer": None,
    "metadata.cluster.check.enable": None,
    "metric.reporters": None,
    "metrics.num.samples": None,
    "metrics.recording.level": None,
    "metrics.sample.window.ms": None,
    "partitioner.class": None,
    "partitioner.rack.aware": None,
    "sasl.client.callback.handler.class": None,
    "sasl.jaas.config": None,
    "sasl.kerberos.kinit.cmd": None,
    "sasl.kerberos.min.time.before.relogin": None,
    "sasl.kerberos.ticket.renew.jitter": None,
    "sasl.kerberos.ticket.renew.window.factor": None,
    "sasl.login.callback.handler.class": None,
    "sasl.login.class": None,
    "sasl.oauthbearer.token.endpoint.url": "sasl_token_provider",
    "security.providers": None,
    "ssl.cipher.suites": None,
    "ssl.enabled.protocols": None,
    "ssl.engine.factory.class": None,
    "ssl.keymanager.algorithm": None,
    "ssl.keystore.password": None,
    "ssl.keystore.type": None,
    "ssl.protocol": None,
    "ssl.provider": None,
    "ssl.secure.random.implementation": None,
    "ssl.trustmanager.algorithm": None,
    "ssl.truststore.password": None,
    "ssl.truststore.type": None,
    "transaction.two.phase.commit.enable": None,
    "value.serializer": None,
}

LIBRDKAFKA: Final[dict[str, str | None]] = {
    "api.version.fallback.ms": None,
    "api.version.request": None,
    "api.version.request.timeout.ms": None,
    "batch.num.messages": "batch_size",
    "broker.address.family": None,
    "broker.address.ttl": None,
    "broker.version.fallback": None,
    "client.rack": None,
    "compression.codec": "compression_type",
    "compression.level": None,  # replaced by a separate field for each codec
    "debug": None,
    "delivery.report.only.error": None,
    "dr.cb": None,
    "dr.msg.cb": None,
    "enable.gapless.guarantee": None,
    "enable.sasl.oauthbearer.unsecure.jwt": None,
    "enable.ssl.certificate.verification": None,
    "error.cb": None,
    "log.cb": None,
    "log.connection.close": None,
    "log.level": None,
    "log.queue": None,
    "log.thread.name": None,
    "max.in.flight": "max_in_flight_requests_per_connection",
    "message.copy.max.bytes": None,
    "message.max.bytes": "max_request_size",
    "message.send.max.retries": "retries",
    "message.timeout.ms": "delivery_timeout_ms",
    "metadata.broker.list": "bootstrap_servers",
    "oauth.cb": "sasl_token_provider",
    "oauthbearer.token.refresh.cb": "sasl_token_provider",
    "partitioner": None,
    "plugin.library.paths": None,
    "produce.offset.report": None,
    "queue.buffering.backpressure.threshold": None,
    "queue.buffering.max.kbytes": "buffer_memory",
    "queue.buffering.max.messages": "buffer_memory",
    "queue.buffering.max.ms": "linger_ms",
    "queuing.strategy": None,
    "receive.message.max.bytes": "receive_max_bytes",
    "reconnect.backoff.jitter.ms": None,
    "request.required.acks": "acks",
    "sasl.kerberos.kinit.cmd": None,
    "sasl.kerberos.min.time.before.relogin": None,
    "sasl.mechanisms": "sasl_mechanism",
    "sasl.oauthbearer.client.credentials.client.id": "sasl_token_provider",
    "sasl.oauthbearer.client.credentials.client.secret": "sasl_token_provider",
    "sasl.oauthbearer.client.id": "sasl_token_provider",
    "sasl.oauthbearer.client.secret": "sasl_token_provider",
    "sasl.oauthbearer.config": "sasl_token_provider",
    "sasl.oauthbearer.extensions": "sasl_token_provider",
    "sasl.oauthbearer.method": "sasl_token_provider",
    "sasl.oauthbearer.scope": "sasl_token_provider",
    "sasl.oauthbearer.token.endpoint.url": "sasl_token_provider",
    "socket.blocking.max.ms": None,
    "socket.keepalive.enable": None,
    "socket.max.fails": None,
    "socket.nagle.disable": None,
    "socket.receive.buffer.bytes": "receive_buffer_bytes",
    "socket.send.buffer.bytes": "send_buffer_bytes",
    "socket.timeout.ms": "request_timeout_ms",
    "ssl.ca.certificate.stores": None,
    "ssl.ca.location": "ssl_truststore_location",
    "ssl.ca.pem": "ssl_truststore_certificates",
    "ssl.certificate.location": "ssl_keystore_location",
    "ssl.certificate.pem": "ssl_keystore_certificate_chain",
    "ssl.cipher.suites": None,
    "ssl.curves.list": None,
    "ssl.engine.id": None,
    "ssl.engine.location": None,
    "ssl.key.pem": "ssl_keystore_key",
    # The name is the same, but librdkafka reads a PKCS#12 file and aiokprod a PEM file.
    "ssl.keystore.location": None,
    "ssl.keystore.password": None,
    "ssl.providers": None,
    "ssl.sigalgs.list": None,
    "statistics.interval.ms": None,
    "stats.cb": None,
    "sticky.partitioning.linger.ms": None,
    "throttle.cb": None,
    "topic.blacklist": None,
    "topic.metadata.propagation.max.ms": None,
    "topic.metadata.refresh.fast.cnt": None,
    "topic.metadata.refresh.fast.interval.ms": "retry_backoff_ms",
    "topic.metadata.refresh.interval.ms": "metadata_max_age_ms",
    "topic.metadata.refresh.sparse": None,
}

AIOKAFKA: Final[dict[str, str | None]] = {
    "api.version": None,
    "key.serializer": None,
    "loop": None,
    "max.batch.size": "batch_size",
    "partitioner": None,
    "sasl.kerberos.domain.name": None,
    "sasl.oauth.token.provider": "sasl_token_provider",
    "sasl.plain.password": "sasl_password",
    "sasl.plain.username": "sasl_username",
    "value.serializer": None,
}

KAFKA_PYTHON: Final[dict[str, str | None]] = {
    "api.version": None,
    "api.version.auto.timeout.ms": None,
    "bootstrap.timeout.ms": "socket_connection_setup_timeout_ms",
    "kafka.client": None,
    "key.serializer": None,
    "metric.reporters": None,
    "metrics.enabled": None,
    "metrics.num.samples": None,
    "metrics.sample.window.ms": None,
    "partitioner": None,
    "proxy.url": None,
    "receive.message.max.bytes": "receive_max_bytes",
    "sasl.kerberos.domain.name": None,
    "sasl.kerberos.name": "sasl_kerberos_principal",
    "sasl.oauth.token.provider": "sasl_token_provider",
    "sasl.plain.password": "sasl_password",
    "sasl.plain.username": "sasl_username",
    "selector": None,
    "socket.options": None,
    "socks5.proxy": None,
    "ssl.cafile": "ssl_truststore_location",
    "ssl.certfile": "ssl_keystore_location",
    "ssl.check.hostname": "ssl_endpoint_identification_algorithm",
    "ssl.ciphers": None,
    "ssl.crlfile": "ssl_crl_location",
    "ssl.keyfile": "ssl_key_location",
    "ssl.password": "ssl_key_password",
    "value.serializer": None,
}

FOREIGN_NAMES: Final[dict[str, dict[str, str | None]]] = {
    "java": JAVA,
    "librdkafka": LIBRDKAFKA,
    "aiokafka": AIOKAFKA,
    "kafka-python": KAFKA_PYTHON,
}
"""The settings of each client."""

VALUES: Final[dict[str, str]] = {
    "batch.num.messages": "a size in bytes, not a number of messages",
    "bootstrap.timeout.ms": "for each connection, not for all together",
    "oauth.cb": "an async function that returns a token, or OidcTokens(...), see docs/security.md",
    "queue.buffering.max.kbytes": "in bytes, not kilobytes",
    "queue.buffering.max.messages": "a size in bytes, not a number of messages",
    "sasl.kerberos.name": "a principal as text, not a gssapi.Name",
    "sasl.oauthbearer.client.credentials.client.id": "OidcTokens(...), see docs/security.md",
    "sasl.oauthbearer.client.credentials.client.secret": "OidcTokens(...), see docs/security.md",
    "sasl.oauthbearer.client.id": "OidcTokens(...), see docs/security.md",
    "sasl.oauthbearer.client.secret": "OidcTokens(...), see docs/security.md",
    "sasl.oauthbearer.config": "OidcTokens(...), see docs/security.md",
    "sasl.oauthbearer.method": "OidcTokens(...), see docs/security.md",
    "sasl.oauthbearer.scope": "OidcTokens(...), see docs/security.md",
    "sasl.oauthbearer.token.endpoint.url": "OidcTokens(...), see docs/security.md",
    "ssl.check.hostname": 'the text "https" or "", not a bool',
}
"""The value that a field expects, for settings whose value has another unit, type or meaning."""


def dotted(name: str) -> str:
    """Return a name in the form that the tables use."""
    return name.strip().lower().replace("_", ".")


def replacement(name: str) -> str | None:
    """Return the field that replaces a setting of another client; None if no client has a setting
    of this name that has a replacement."""
    key = dotted(name)
    return next((table[key] for table in FOREIGN_NAMES.values() if table.get(key)), None)
