"""Secrets, credentials and token providers for the security settings of `ProducerConfig`.

`TokenProvider` is the interface of `sasl_token_provider`; `OidcTokens`, `JwtBearerTokens` and
`MskIamTokens` implement it (docs/security.md).
"""

from aiokprod._security.jwt_bearer import JwtBearerTokens
from aiokprod._security.msk_iam import AwsCredentials, MskIamTokens, botocore_credentials
from aiokprod._security.oidc import OidcTokens
from aiokprod._security.secret import Credentials, Secret
from aiokprod._security.token_provider import TokenProvider

__all__ = [
    "AwsCredentials",
    "Credentials",
    "JwtBearerTokens",
    "MskIamTokens",
    "OidcTokens",
    "Secret",
    "TokenProvider",
    "botocore_credentials",
]
