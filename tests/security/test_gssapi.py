"""GSSAPI: the exchange of RFC 4752 with a fake Kerberos library.

tests/integration/test_kerberos.py uses tickets of a real KDC.
"""

from __future__ import annotations

import asyncio
import enum
import sys
import threading
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from aiokprod._net.sasl.gssapi import Gssapi, KerberosLogin, _reason
from aiokprod._wire.messages.sasl_authenticate import SaslAuthenticateResponse
from aiokprod.config import ProducerConfig
from aiokprod.errors import ConfigError
from aiokprod.testing.memory import MemoryNetwork
from tests.security.sasl_broker import AUTHENTICATE, Refused, SaslBroker, new_producer
from tests.security.test_sasl import connected, refused
from tests.virtual_time import in_virtual_time


class GSSError(Exception):
    maj_code, min_code = 1, 2

    def get_all_statuses(self, code: int, is_major: bool) -> list[str]:
        return ["major"] if is_major else [str(self)]


class Flag(enum.IntFlag):
    mutual_authentication = 1
    integrity = 2


class Library(ModuleType):
    """The part of the `gssapi` package that the client uses. It records the threads of its
    calls."""

    def __init__(self) -> None:
        super().__init__("gssapi")
        self.MechType = SimpleNamespace(kerberos="krb5")
        self.NameType = SimpleNamespace(hostbased_service="service", kerberos_principal="user")
        self.RequirementFlag = Flag
        self.exceptions = SimpleNamespace(GSSError=GSSError)
        self.threads: set[str] = set()
        self.stores: list[Any] = []
        self.fault: str | None = None
        self.flags = Flag.mutual_authentication | Flag.integrity

    def called(self) -> None:
        self.threads.add(threading.current_thread().name)
        if self.fault is not None:
            raise GSSError(self.fault)

    def Name(self, text: str, kind: str) -> str:
        return f"{kind}:{text}"

    def Credentials(self, name: Any, mechs: Any, usage: str, store: Any) -> Any:
        self.called()
        assert (mechs, usage) == (["krb5"], "initiate")
        self.stores.append((name, store))
        return "tickets"

    def SecurityContext(self, **options: Any) -> Context:
        self.called()
        return Context(self, **options)


class Context:
    """A security context whose tokens are plain text. Wrapping adds a prefix."""

    def __init__(
        self, library: Library, name: str, creds: Any, mech: str, flags: Flag, usage: str
    ) -> None:
        assert (creds, mech, usage) == ("tickets", "krb5", "initiate")
        assert flags == Flag.mutual_authentication | Flag.integrity
        self.library, self.name = library, name
        self.complete = False
        self.actual_flags = library.flags

    def step(self, token: bytes | None) -> bytes | None:
        self.library.called()
        if token is None:
            return b"ticket for " + self.name.encode()
        if token != b"broker's proof":
            raise GSSError("Message stream modified")
        self.complete = True
        return None

    def unwrap(self, data: bytes) -> Any:
        self.library.called()
        if not data.startswith(b"wrapped:"):
            raise GSSError("A token had an invalid Message Integrity Check (MIC)")
        return SimpleNamespace(message=data[8:])

    def wrap(self, data: bytes, encrypt: bool) -> Any:
        assert encrypt is False
        return SimpleNamespace(message=b"wrapped:" + data)


class KerberosServer:
    def __init__(
        self, offer: bytes = b"\x01\x00\x00\x00", proof: bytes = b"broker's proof"
    ) -> None:
        self.offer, self.proof = offer, proof
        self.step = 0

    def answer(self, data: bytes) -> tuple[bytes, bool]:
        self.step += 1
        if self.step == 1:
            if data != b"ticket for service:kafka@b":
                raise Refused("wrong ticket")
            return self.proof, False
        if self.step == 2:
            assert data == b""
            return b"wrapped:" + self.offer, False
        assert data == b"wrapped:\x01\x00\x00\x00"
        return b"", True


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    made = Library()
    monkeypatch.setitem(sys.modules, "gssapi", made)
    made.__spec__ = ModuleSpec("gssapi", None)
    return made


def harness(**fields: Any) -> tuple[SaslBroker, MemoryNetwork]:
    network = MemoryNetwork()
    return SaslBroker(network, GSSAPI=lambda: KerberosServer(**fields)), network


@in_virtual_time
async def test_gssapi_exchange_of_rfc_4752_chooses_no_layer(library: Library) -> None:
    broker, network = harness()
    made = new_producer(network, sasl_mechanism="GSSAPI")
    await connected(made)
    assert broker.sent == [b"ticket for service:kafka@b", b"", b"wrapped:\x01\x00\x00\x00"]
    assert library.stores == [(None, None)]
    await made.close(0)


def test_gssapi_asks_the_library_off_the_loop_in_a_thread_of_its_own(library: Library) -> None:
    async def main() -> None:
        exchange = Gssapi(KerberosLogin("kafka", None, None), "b")
        await exchange.first()
        assert await exchange.next(b"broker's proof") == b""
        assert await exchange.next(b"wrapped:\x01\x00\x00\x00") is not None
        assert await exchange.next(b"") is None

    asyncio.run(main())
    assert library.threads == {"aiokprod-gssapi_0"}


@in_virtual_time
async def test_gssapi_keytab_and_principal_go_to_the_library(library: Library) -> None:
    broker, network = harness()
    made = new_producer(
        network,
        sasl_mechanism="GSSAPI",
        sasl_kerberos_principal="app@EXAMPLE.COM",
        sasl_kerberos_keytab="/etc/app.keytab",
    )
    await connected(made)
    [(name, store)] = library.stores
    assert name == "user:app@EXAMPLE.COM"
    assert store["client_keytab"] == "/etc/app.keytab"
    assert store["ccache"].startswith("MEMORY:aiokprod-")
    assert len(broker.exchanges) == 1
    await made.close(0)


@in_virtual_time
async def test_gssapi_service_name_is_configurable(library: Library) -> None:
    broker, network = harness()
    made = new_producer(network, sasl_mechanism="GSSAPI", sasl_kerberos_service_name="stream")
    await refused(made, "wrong ticket")
    assert broker.sent[0] == b"ticket for service:stream@b"
    await made.close(0)


@in_virtual_time
async def test_f78_gssapi_session_is_renewed_with_the_tickets_of_then(library: Library) -> None:
    broker, network = harness()
    broker.lifetime_ms = 10_000
    made = new_producer(network, sasl_mechanism="GSSAPI")
    await connected(made)
    links = len(network.links)
    await asyncio.sleep(60.0)
    assert len(network.links) == links
    assert 6 <= len(broker.exchanges) <= 8
    assert len(library.stores) == len(broker.exchanges)
    await made.close(0)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"proof": b"forged"}, "Message stream modified"),
        ({"proof": b""}, "Message stream modified"),
        ({"offer": b"\x06\x00\x10\x00"}, "requires a security layer"),
        ({"offer": b"\x01"}, "malformed"),
        ({"offer": b"\x01\x00\x00\x00 and more"}, "malformed"),
        ({"proof": b"x" * 70_000}, "too long"),
    ],
)
@in_virtual_time
async def test_s5_gssapi_hostile_broker_is_refused(
    library: Library, fields: dict[str, bytes], text: str
) -> None:
    broker, network = harness(**fields)
    made = new_producer(network, sasl_mechanism="GSSAPI")
    await refused(made, text)
    assert broker.count(3) == 0
    assert b"wrapped:\x01\x00\x00\x00" not in broker.sent
    await made.close(0)


@in_virtual_time
async def test_s5_gssapi_broker_that_skips_its_proof_is_refused(library: Library) -> None:
    broker, network = harness()
    broker.answers[AUTHENTICATE] = lambda header, message: SaslAuthenticateResponse()
    made = new_producer(network, sasl_mechanism="GSSAPI")
    await refused(made, "Message stream modified")
    library.flags = Flag.integrity
    broker.answers[AUTHENTICATE] = broker.authenticate
    await asyncio.sleep(2.0)
    await refused(made, "did not authenticate itself")
    assert broker.count(3) == 0
    await made.close(0)


@pytest.mark.parametrize(
    ("major", "minor", "text"),
    [
        (1, 2, "major: no ticket"),
        (1, 0, "major"),
        (13 << 16, 2, "no ticket"),
        (13 << 16, 0, "major"),
    ],
)
def test_gssapi_unspecified_failure_is_told_by_its_minor_code_alone(
    major: int, minor: int, text: str
) -> None:
    """GSS_S_FAILURE (RFC 2744, 3.9.1) adds no information to a minor code."""
    error = GSSError("no ticket")
    error.maj_code, error.min_code = major, minor
    assert _reason(error) == text


@in_virtual_time
async def test_s4_gssapi_missing_tickets_are_named_and_heal(library: Library) -> None:
    broker, network = harness()
    library.fault = "No Kerberos credentials available (default cache: FILE:/tmp/krb5cc_0)"
    made = new_producer(network, sasl_mechanism="GSSAPI")
    await refused(made, "No Kerberos credentials available")
    assert broker.sent == []
    library.fault = None
    await asyncio.sleep(2.0)
    await connected(made)
    await made.close(0)


def test_gssapi_without_its_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"aiokprod\[gssapi\]"):
        ProducerConfig(
            bootstrap_servers="b:1", security_protocol="SASL_SSL", sasl_mechanism="GSSAPI"
        )
