"""Tokens for Amazon MSK with IAM: an ``oauth_cb`` that calls the vendor's signer.

Signing needs no network if AWS credentials are available. boto3 finds them, in the process that
logs in: on executors, for instance, from the role of the machine or container.

At DEBUG botocore logs the data it signs, with the session token and the signature: together they are a login. If a
role is assumed, it logs the answer with the role's secret key. So its log is filtered while it signs for a broker;
other users of botocore in the same process are not affected.
"""

from __future__ import annotations

import contextlib
import contextvars
import logging
from collections.abc import Iterator
from typing import Final

from spark_2pc_sink.extras import extra
from spark_2pc_sink.options.settings import refused

with extra("msk"):
    from aws_msk_iam_sasl_signer import MSKAuthTokenProvider
    from botocore.awsrequest import AWSHTTPConnection, AWSHTTPSConnection


_MS: Final = 1_000
_SESSION: Final = "spark-2pc-sink"
#: Valid keys in sasl.oauthbearer.config.
_NAMES: Final = ("region", "profile", "role_arn", "session")


def msk_iam(config: str) -> tuple[str, float]:
    """A token for the brokers of one region.

    Args:
        config: value of ``sasl.oauthbearer.config``: ``region=eu-west-1``, followed by either ``profile=NAME`` from
            ~/.aws/config, or ``role_arn=ARN`` of a role to assume, with ``session=NAME`` for a session name other
            than spark-2pc-sink.

    Returns:
        The token, and its expiry in seconds since 1970.

    Raises:
        ConfigurationError: ``config`` is invalid.
        Exception: boto3's error if there are no credentials.
    """
    said, signer = _read(config), MSKAuthTokenProvider
    with _quiet():
        if "role_arn" in said:
            session = said.get("session", _SESSION)
            token, expires_ms = signer.generate_auth_token_from_role_arn(said["region"], said["role_arn"], session)
        elif "profile" in said:
            token, expires_ms = signer.generate_auth_token_from_profile(said["region"], said["profile"])
        else:
            token, expires_ms = signer.generate_auth_token(said["region"])
    return token, expires_ms / _MS


def _read(config: str) -> dict[str, str]:
    said = {name: value for name, _, value in (part.partition("=") for part in config.split())}
    two_ways = "profile" in said and "role_arn" in said
    if not said.get("region") or not all(said.values()) or said.keys() - set(_NAMES) or two_ways:
        rule = "for msk_iam must be region=NAME, followed by profile=NAME or by role_arn=ARN and session=NAME"
        raise refused("sasl.oauthbearer.config", config, rule, "write, for example, region=eu-west-1")
    return said


#: The modules that log requests, the data signed for them, and answers.
_LOGGERS: Final = ("botocore.auth", "botocore.endpoint", "botocore.parsers")
_signing: contextvars.ContextVar[bool] = contextvars.ContextVar("signing", default=False)


class _Withhold(logging.Filter):
    """Truncates a message before its first value."""

    def filter(self, record: logging.LogRecord) -> bool:
        if _signing.get():
            # A message without values may have them in its text.
            said = str(record.msg).partition("%")[0].strip() if record.args else ""
            record.msg, record.args = f"{said} (withheld)".strip(), ()
        return True


_FILTER: Final = _Withhold()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Log no credentials inside the block."""
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_FILTER)
    for connection in (AWSHTTPConnection, AWSHTTPSConnection):
        # A program may set it globally on ``http.client``: it prints each request and its headers.
        connection.debuglevel = 0
    before = _signing.set(True)
    try:
        yield
    finally:
        _signing.reset(before)
