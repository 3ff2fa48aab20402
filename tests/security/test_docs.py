"""A producer accepts the settings in the examples of docs/security.md and the README."""

from __future__ import annotations

import importlib.util
import inspect
import re
import ssl
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any, ClassVar

import pytest

from aiokprod import Credentials, Producer, ProducerConfig, Secret
from aiokprod._config import settings as settings_of
from aiokprod._config.mechanisms import MECHANISMS
from aiokprod._security.msk_iam import MskIamTokens
from aiokprod._security.oidc import OidcTokens

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8").split("## Secured clusters")[1]
EXAMPLES = [
    *re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL),
    re.findall(r"```python\n(.*?)```", README, re.DOTALL)[0],
]
WORDS: dict[str, Any] = {"token_id": "id", "token_hmac": "canary-hmac"}


class Recorded(Producer):  # type: ignore[type-arg]
    """Records the settings of every producer that an example creates."""

    made: ClassVar[list[Any]] = []

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.made.append(self._config)


@pytest.fixture(autouse=True)
def with_gssapi(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, package=None: (
            ModuleSpec(name, None) if name == "gssapi" else find(name, package)
        ),
    )
    monkeypatch.setattr(ssl, "create_default_context", lambda **_: ssl.SSLContext(16))


def run_all() -> list[Any]:
    Recorded.made = []
    names = {
        "Producer": Recorded, "Secret": Secret, "Credentials": Credentials, "ssl": ssl,
        "OidcTokens": OidcTokens, "MskIamTokens": MskIamTokens, **WORDS,
    }  # fmt: skip
    for example in EXAMPLES:
        # "..." stands for settings that the example does not discuss.
        text = example.replace("Producer(..., ", "Producer(bootstrap_servers='b:1', "
                               "security_protocol='SASL_SSL', ")  # fmt: skip
        exec(compile(text, "docs/security.md", "exec"), names)
    return Recorded.made


def test_docs_every_security_example_is_accepted() -> None:
    assert len(run_all()) >= 20


def test_docs_have_an_example_for_every_listener_type_and_mechanism() -> None:
    made = run_all()
    assert {config.security_protocol for config in made} == {"SSL", "SASL_SSL", "SASL_PLAINTEXT"}
    assert {config.sasl_mechanism for config in made} == {None, *MECHANISMS}
    assert any(config.ssl_keystore_location for config in made)
    assert any(config.sasl_delegation_token for config in made)


def test_docs_and_settings_name_every_mechanism() -> None:
    settings = re.sub(r"\s+", " ", ProducerConfig.__doc__ or "")
    (choices,) = re.findall(r" sasl_mechanism: (.*?)\. ", settings)
    assert re.findall(r'"([\w-]+)"', choices) == [*MECHANISMS]
    (typed,) = re.findall(
        r"    sasl_mechanism: \((.*?)\n    \)\n", inspect.getsource(settings_of), re.DOTALL
    )
    assert re.findall(r'"([\w-]+)"', typed) == [*MECHANISMS]
    in_clear = {spec.name for spec in MECHANISMS.values() if spec.sends_in_clear}
    (allowed,) = re.findall(r" sasl_allow_cleartext: allow (.*?) without TLS", settings)
    (readable,) = re.findall(
        r"^(.*) send credentials that can be read without", GUIDE, re.MULTILINE
    )
    assert set(re.split(r", | and ", allowed)) == set(re.split(r", | and ", readable)) == in_clear


def test_docs_name_the_hosted_services() -> None:
    headings = set(re.findall(r"^### (.*)$", GUIDE, re.MULTILINE))
    assert {"Amazon MSK", "Confluent Cloud", "Redpanda", "Aiven"} <= headings
