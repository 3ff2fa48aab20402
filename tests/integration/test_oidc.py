"""OAUTHBEARER: a real broker verifies the signed tokens of a local OpenID Connect provider."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aiokprod import Producer
from aiokprod._security.jwt_bearer import GRANT, JwtBearerTokens
from aiokprod._security.oidc import OidcTokens
from aiokprod.testing.kafka_cluster import KafkaCluster
from tests.integration import oidc_server
from tests.integration.load import every_record_once, every_record_once_for, healed, refused
from tests.integration.oidc_server import AUDIENCE, CLIENT, ISSUER, SECRET, Provider
from tests.integration.runner import Run
from tests.integration.test_security import CA, RECORDS, TRUST, Connections

OAUTH = "org.apache.kafka.common.security.oauthbearer"


@pytest.fixture(scope="module")
def idp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Provider]:
    with oidc_server.provider(tmp_path_factory.mktemp("idp"), CA) as made:
        yield made


@pytest.fixture(scope="module")
def broker(idp: Provider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    folder: Path = tmp_path_factory.mktemp("certificates")
    store = CA.issue("127.0.0.1", number=76).write(folder, "broker")
    listener = {
        "security.protocol": "SASL_SSL",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(store),
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "oauthbearer.sasl.jaas.config": f"{OAUTH}.OAuthBearerLoginModule required "
        'unsecuredLoginStringClaim_sub="broker";',
        "oauthbearer.sasl.server.callback.handler.class": f"{OAUTH}."
        "OAuthBearerValidatorCallbackHandler",
        "oauthbearer.connections.max.reauth.ms": "3600000",
    }
    cluster = KafkaCluster(
        1,
        listeners={"OIDC": listener},
        config={
            "sasl.oauthbearer.jwks.endpoint.url": idp.jwks.as_uri(),
            "sasl.oauthbearer.expected.audience": AUDIENCE,
            "sasl.oauthbearer.expected.issuer": ISSUER,
        },
    )
    allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={idp.jwks.as_uri()}"
    before = os.environ.get("JAVA_TOOL_OPTIONS")
    os.environ["JAVA_TOOL_OPTIONS"] = allowed
    try:
        cluster.start_blocking()
    finally:
        if before is None:
            del os.environ["JAVA_TOOL_OPTIONS"]
        else:
            os.environ["JAVA_TOOL_OPTIONS"] = before
    yield cluster
    cluster.stop_blocking()


def tokens(idp: Provider, grant: str) -> Any:
    if grant == GRANT:
        key = oidc_server.pem(idp.client_key)
        return JwtBearerTokens(
            idp.url, key=key, issuer=CLIENT, subject="my-app", audience=idp.url, tls=idp.tls
        )
    return OidcTokens(idp.url, CLIENT, SECRET, scope="produce", tls=idp.tls)


def settings(cluster: KafkaCluster, provider: Any) -> dict[str, Any]:
    return {
        "bootstrap_servers": cluster.listener("OIDC"),
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_token_provider": provider,
        **TRUST,
    }


@pytest.mark.parametrize("grant", ["client_credentials", GRANT], ids=["credentials", "jwt-bearer"])
def test_oidc_listener_every_record_once_in_order(
    idp: Provider, broker: KafkaCluster, run_uvloop: Run, topic: str, grant: str
) -> None:
    async def scenario() -> None:
        given = settings(broker, tokens(idp, grant))
        await every_record_once(broker, topic, RECORDS, given)

    idp.lifetime_s = 3600
    before = len(idp.granted)
    run_uvloop(scenario())
    assert idp.granted[before:] == [grant]  # one token for all connections


def test_f78_oidc_tokens_of_seconds_are_renewed_on_the_same_connection(
    idp: Provider, broker: KafkaCluster, run_uvloop: Run, topic: str
) -> None:
    """The session ends when its token expires. The next token is fetched before that."""
    connections = Connections()

    async def scenario() -> None:
        given = {**settings(broker, tokens(idp, GRANT)), "observer": connections}
        await every_record_once_for(broker, topic, 10.0, given)

    idp.lifetime_s = 5
    before = len(idp.granted)
    run_uvloop(scenario())
    idp.lifetime_s = 3600
    assert 2 <= len(idp.granted) - before <= 6
    assert connections.opened <= 2


class ForeignTokens:
    """A provider of well-formed tokens that are signed with a foreign key."""

    def __init__(self) -> None:
        self._key = oidc_server.new_key()

    async def token(self) -> str:
        import jwt

        now = int(time.time())
        claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": "canary", "iat": now, "exp": now + 3600}
        return jwt.encode(claims, self._key, "RS256", headers={"kid": "idp-1"})


@pytest.mark.parametrize("case", ["foreign-signature", "provider-refuses", "unsecured"])
def test_s4_oidc_refusal_is_named_to_all_waiting_calls_and_heals(
    idp: Provider, broker: KafkaCluster, run_uvloop: Run, topic: str, case: str
) -> None:
    from tests.integration.test_security import give_token

    good = tokens(idp, "client_credentials")
    bad: Any = {"foreign-signature": ForeignTokens().token, "unsecured": give_token}.get(case)
    use_bad = True

    async def provider() -> Any:
        return await (bad() if use_bad and bad is not None else good.token())

    async def scenario() -> None:
        nonlocal use_bad
        await broker.create_topic(topic, partitions=1)
        async with Producer(**settings(broker, provider)) as producer:
            await refused(producer, topic, "status 401" if bad is None else "invalid_token")
            use_bad = idp.refuse = False
            await healed(producer, topic)

    idp.refuse = case == "provider-refuses"
    try:
        run_uvloop(scenario())
    finally:
        idp.refuse = False
