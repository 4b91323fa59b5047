"""Logins by Kerberos tickets (SASL/GSSAPI): kafka-python speaks, and libkrb5 finds tickets where its environment says.

Each login looks for tickets anew, so they may be renewed under a running job: by a keytab (``KRB5_CLIENT_KTNAME``), or
by whoever keeps the credential cache (``KRB5CCNAME``). One that is missing counts as a broker that is away.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_2pc_sink.extras import extra

if TYPE_CHECKING:
    from spark_2pc_sink.options import KafkaOptions


def check_library(options: KafkaOptions) -> None:
    """Make sure that GSSAPI can be spoken, where the options ask for it.

    Raises:
        MissingExtraError: the package gssapi is not installed.
    """
    if options.sasl_mechanism == "GSSAPI":
        with extra("gssapi"):
            import gssapi  # noqa: F401, PLC0415 - optional, and kafka-python's to use
