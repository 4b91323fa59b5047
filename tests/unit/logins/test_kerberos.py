"""Logins by Kerberos tickets: what is asked for, and what is not."""

from __future__ import annotations

import sys

import pytest

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.extras import MissingExtraError
from spark_2pc_sink.logins.tokens import check_library
from spark_2pc_sink.options import KafkaOptions
from spark_2pc_sink.verification.topic_reader import client_settings

PLACE = {"bootstrap.servers": "h:1"}
LOGIN = {**PLACE, "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "GSSAPI"}


def test_without_the_package_the_error_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gssapi", None)
    with pytest.raises(MissingExtraError, match=r'gssapi is not installed: run pip install "\.\[gssapi\]"'):
        check_library(KafkaOptions.parse(LOGIN))


def test_other_logins_do_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gssapi", None)
    check_library(KafkaOptions.parse(PLACE))


@pytest.mark.parametrize(("given", "service"), [({}, "kafka"), ({"sasl.kerberos.service.name": "broker"}, "broker")])
def test_the_service_of_the_brokers(given: dict[str, str], service: str) -> None:
    assert KafkaOptions.parse(LOGIN | given).login_config()["sasl_kerberos_service_name"] == service


def test_verify_refuses_by_name_where_its_library_has_no_kerberos() -> None:
    """As in the wheels of confluent-kafka."""
    with pytest.raises(ConfigurationError, match=r"built without Kerberos.*--command-config"):
        client_settings(KafkaOptions.parse(LOGIN))
