"""Tokens for Amazon MSK with IAM: an ``oauth_cb`` that calls the vendor's signer.

Signing needs no network where the AWS credentials are at hand. They are found as boto3 finds them, in the process that
logs in: on executors by the role of the machine or container, for instance.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.extras import extra
from spark_2pc_sink.logins import signer_log

with extra("msk"):
    from aws_msk_iam_sasl_signer import MSKAuthTokenProvider

_MS: Final = 1_000
_SESSION: Final = "spark-2pc-sink"
#: What sasl.oauthbearer.config may say.
_NAMES: Final = ("region", "profile", "role_arn", "session")


def msk_iam(config: str) -> tuple[str, float]:
    """A token for the brokers of one region.

    Args:
        config: of ``sasl.oauthbearer.config``: ``region=eu-west-1``, and behind it either ``profile=NAME`` of
            ~/.aws/config, or ``role_arn=ARN`` of a role to assume, with ``session=NAME`` where that shall be another
            one than spark-2pc-sink.

    Returns:
        The token, and when it expires in seconds since 1970.

    Raises:
        ConfigurationError: ``config`` says something else.
        Exception: what boto3 raises where there are no credentials.
    """
    said = _read(config)
    with signer_log.quiet():
        token, expires_ms = _signed(said)
    return token, expires_ms / _MS


def _signed(said: Mapping[str, str]) -> tuple[str, int]:
    """What the vendor's signer makes: the token, and when it expires in milliseconds."""
    signer, region = MSKAuthTokenProvider, said["region"]
    signed: tuple[str, int]
    if "role_arn" in said:
        session = said.get("session", _SESSION)
        signed = signer.generate_auth_token_from_role_arn(region, said["role_arn"], session)
    elif "profile" in said:
        signed = signer.generate_auth_token_from_profile(region, said["profile"])
    else:
        signed = signer.generate_auth_token(region)
    return signed


def _read(config: str) -> dict[str, str]:
    said = {name: value for name, _, value in (part.partition("=") for part in config.split())}
    two_ways = "profile" in said and "role_arn" in said
    if not said.get("region") or not all(said.values()) or said.keys() - set(_NAMES) or two_ways:
        raise ConfigurationError(
            option="sasl.oauthbearer.config",
            value=config,
            rule="for msk_iam it is region=NAME, and behind that profile=NAME, or role_arn=ARN and session=NAME",
            remedy="write for example region=eu-west-1",
        )
    return said
