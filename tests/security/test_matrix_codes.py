"""Every error code in responses to SaslHandshake and SaslAuthenticate. Each waiting call gets an
error in time, attempts follow the backoff, and the producer recovers together with the broker."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import pytest

from aiokprod import KafkaError
from aiokprod._wire.messages.sasl_authenticate import SaslAuthenticateResponse
from aiokprod._wire.messages.sasl_handshake import SaslHandshakeResponse
from aiokprod.errors import Outcome
from aiokprod.testing.fake_cluster.control import Reaction, answer
from aiokprod.testing.fake_cluster.framing import Request
from tests.scenarios.scenario_helpers import RECOVERY, TICK, now, play
from tests.scenarios.test_matrix_errors import CODES
from tests.security.sasl_broker import AUTHENTICATE, HANDSHAKE, PlainServer
from tests.security.sasl_cluster import PASSWORD, USER, SaslCluster, producer

ANSWERS: dict[int, Any] = {
    HANDSHAKE: SaslHandshakeResponse(mechanisms=["PLAIN"]),
    AUTHENTICATE: SaslAuthenticateResponse(),
}
BLOCK_S = 3.0


async def one_case(api_key: int, code: int) -> None:
    cluster = SaslCluster(1, {"PLAIN": lambda: PlainServer({USER: PASSWORD})})
    cluster.create_topic("t", 1)
    rules = list(cluster.script._rules)
    cluster.script.clear()
    refused = 0

    def refuse(request: Request) -> Reaction:
        nonlocal refused
        refused += 1
        return answer(dataclasses.replace(ANSWERS[api_key], error_code=code))

    stop = cluster.control(api_key, refuse)
    cluster.script._rules.extend(rules)
    made = producer(
        cluster, sasl_mechanism="PLAIN", sasl_username=USER, sasl_password=PASSWORD,
        max_block_ms=int(BLOCK_S * 1000), delivery_timeout_ms=10_000, request_timeout_ms=1_000,
    )  # fmt: skip
    try:
        start = now()
        with pytest.raises(KafkaError) as caught:
            await made.send("t", b"refused", partition=0)
        assert now() - start <= BLOCK_S + TICK
        assert caught.value.outcome is Outcome.NOT_SENT
        assert 1 <= refused <= 20, "a storm"
        stop()
        start = now()
        await made.send("t", b"good", partition=0)
        assert now() - start <= RECOVERY
        assert cluster.values("t", 0) == [b"good"]
    finally:
        await made.close(1.0)


@pytest.mark.parametrize("api_key", [HANDSHAKE, AUTHENTICATE])
def test_every_code_is_an_error_in_time_and_heals(api_key: int) -> None:
    for code in CODES:
        try:
            play(partial(one_case, api_key, code))
        except BaseException as error:
            error.add_note(f"API {api_key}, code {code}")
            raise
