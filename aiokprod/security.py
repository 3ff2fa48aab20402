"""Secrets, credentials and token providers for the security settings of `ProducerConfig`.

A token provider is an async callable without arguments: for OAUTHBEARER it returns the token, for
AWS_MSK_IAM the credentials (docs/security.md). Those below are ready-made.
"""

from aiokprod._security.jwt_bearer import JwtBearerTokens
from aiokprod._security.msk_iam import AwsCredentials, MskIamTokens, botocore_credentials
from aiokprod._security.oidc import OidcTokens
from aiokprod._security.secret import Credentials, Secret

__all__ = [
    "AwsCredentials",
    "Credentials",
    "JwtBearerTokens",
    "MskIamTokens",
    "OidcTokens",
    "Secret",
    "botocore_credentials",
]
