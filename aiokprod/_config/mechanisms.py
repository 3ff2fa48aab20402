"""The SASL mechanisms. The row of a mechanism selects its checks and its implementation.

A new mechanism needs a row here and a module in `_net/sasl` with a function
`mechanism(config, unix_ms)` (see `_net/sasl/factory.py`).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final


class Needs(enum.Enum):
    """The settings that a mechanism needs for authentication."""

    PASSWORD = "sasl_username and sasl_password, or sasl_credentials"  # noqa: S105
    TOKEN = "sasl_token_provider"  # noqa: S105
    SIGNATURE = "sasl_token_provider with a method payload()"
    TICKET = "Kerberos tickets: sasl_kerberos_*"


@dataclass(frozen=True, slots=True)
class MechanismSpec:
    """One SASL mechanism.

    Attributes:
        name: the name in SaslHandshake and in the setting sasl_mechanism.
        module: the module of the implementation in `aiokprod._net.sasl`.
        needs: the settings that the mechanism needs for authentication.
        sends_in_clear: without TLS, an eavesdropper could reuse the data that the mechanism sends.
        delegation_tokens: the mechanism supports delegation tokens (KIP-48).
    """

    name: str
    module: str
    needs: Needs
    sends_in_clear: bool
    delegation_tokens: bool = False


MECHANISMS: Final = {
    spec.name: spec
    for spec in (
        MechanismSpec("PLAIN", "plain", Needs.PASSWORD, sends_in_clear=True),
        MechanismSpec(
            "SCRAM-SHA-256", "scram", Needs.PASSWORD, sends_in_clear=False, delegation_tokens=True
        ),
        MechanismSpec(
            "SCRAM-SHA-512", "scram", Needs.PASSWORD, sends_in_clear=False, delegation_tokens=True
        ),
        MechanismSpec("OAUTHBEARER", "oauthbearer", Needs.TOKEN, sends_in_clear=True),
        MechanismSpec("GSSAPI", "gssapi", Needs.TICKET, sends_in_clear=False),
        MechanismSpec("AWS_MSK_IAM", "aws_msk_iam", Needs.SIGNATURE, sends_in_clear=True),
    )
}
"""Rows by name, in the order in which error messages list them."""
