"""The log of Py4J shows no bytes, in which the credentials of tasks are."""

from __future__ import annotations

import base64
import logging
import pickle

import pytest

from spark_2pc_sink.sink.job import gateway_log


@pytest.mark.parametrize("name", ["py4j.clientserver", "py4j.java_gateway"])
def test_bytes_are_shown_by_their_number(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """As Py4J writes a call; the rest of it stays."""
    gateway_log.install()
    encoded = base64.b64encode(pickle.dumps({"sasl_password": "planted"})).decode()
    with caplog.at_level(logging.DEBUG, logger=name):
        text = f"Command to send: i\norg.apache.PythonFunction\nj{encoded}\nro12\ne\n"
        logging.getLogger(name).debug(text)
        logging.getLogger(name).debug("Answer received: %s", "!yro13")
    assert encoded[:32] not in caplog.text
    assert f"PythonFunction\nj({len(encoded)} characters of Base64)\nro12" in caplog.text
    assert "!yro13" in caplog.text
