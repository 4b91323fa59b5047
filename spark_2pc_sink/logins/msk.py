"""Tokens for Amazon MSK with IAM: an ``oauth_cb`` that calls the vendor's signer.

Signing needs no network where the AWS credentials are at hand. They are found as boto3 finds them, in the process that
logs in: on executors by the role of the machine or container, for instance.

At DEBUG botocore logs what it signs, with the session token and the signature: together they are a login. Where a role
is assumed, it logs the answer with the role's secret key. So while it signs for a broker its log is kept quiet; other
users of botocore in the same process keep theirs.
"""

from __future__ import annotations

import contextlib
import contextvars
import logging
from collections.abc import Iterator, Mapping
from typing import Final

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.extras import extra

with extra("msk"):
    from aws_msk_iam_sasl_signer import MSKAuthTokenProvider
    from botocore.awsrequest import AWSHTTPConnection, AWSHTTPSConnection


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
    with _quiet():
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


#: The modules that show requests, what is signed of them, and answers.
_LOGGERS: Final = ("botocore.auth", "botocore.endpoint", "botocore.parsers")
_signing: contextvars.ContextVar[bool] = contextvars.ContextVar("signing", default=False)


class _Withhold(logging.Filter):
    """Leaves of a message what stands before its first value."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Let the record pass, without credentials."""
        if _signing.get():
            # A message without values may have them in its text.
            said = str(record.msg).partition("%")[0].strip() if record.args else ""
            record.msg, record.args = f"{said} (withheld)".strip(), ()
        return True


_FILTER: Final = _Withhold()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Show no credentials inside the block."""
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_FILTER)
    for connection in (AWSHTTPConnection, AWSHTTPSConnection):
        # A program may set it on ``http.client`` for all: it prints each request and its headers.
        connection.debuglevel = 0
    before = _signing.set(True)
    try:
        yield
    finally:
        _signing.reset(before)
