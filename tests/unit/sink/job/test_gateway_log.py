"""The logs of Py4J and of Spark Connect's client show no bytes, in which the credentials of tasks are."""

from __future__ import annotations

import base64
import logging
import pickle

import pytest
from google.protobuf import text_format
from pyspark.sql.connect.logging import logger
from pyspark.sql.connect.proto import Plan

from spark_2pc_sink import DualWriteSink
from spark_2pc_sink.sink.job import session_facts


@pytest.mark.parametrize("name", ["py4j.clientserver", "py4j.java_gateway"])
def test_bytes_are_shown_by_their_number(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """As Py4J writes a call; the rest of it stays."""
    session_facts.install_log_filter()
    encoded = base64.b64encode(pickle.dumps({"sasl_password": "planted"})).decode()
    with caplog.at_level(logging.DEBUG, logger=name):
        text = f"Command to send: i\norg.apache.PythonFunction\nj{encoded}\nro12\ne\n"
        logging.getLogger(name).debug(text)
        logging.getLogger(name).debug("Answer received: %s", "!yro13")
    assert encoded[:32] not in caplog.text
    assert f"PythonFunction\nj({len(encoded)} characters of Base64)\nro12" in caplog.text
    assert "!yro13" in caplog.text


@pytest.fixture
def connect_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log of Spark Connect's client as SPARK_CONNECT_LOG_LEVEL=debug makes it."""
    monkeypatch.setattr(logger, "disabled", False)
    monkeypatch.setattr(logger, "filters", [])


@pytest.mark.usefixtures("connect_log")
def test_a_sink_that_spark_connect_sends_is_shown_by_its_size(caplog: pytest.LogCaptureFixture) -> None:
    """As the client logs its request; the rest of it stays."""
    sink = DualWriteSink(
        transactional_id="orders",
        kafka={"bootstrap.servers": "h:1"},
        database="postgresql://me:planted@h/d",
        topic="orders",
        table="orders",
    )
    plan = Plan()
    start = plan.command.write_stream_operation_start
    start.query_name = 'the "orders"'
    start.foreach_batch.python_function.command = pickle.dumps(sink)
    compressed = Plan()
    compressed.compressed_operation.data = b"compressed-planted" * 2
    with caplog.at_level(logging.DEBUG, logger=logger.name):
        for each in (plan, compressed):
            logger.debug(f"Request: {text_format.MessageToString(each, as_one_line=True)}")
    assert "planted" not in caplog.text
    assert "characters of bytes" in caplog.text
    assert 'query_name: "the \\"orders\\""' in caplog.text


def test_a_message_that_cannot_be_put_together_is_for_the_handlers() -> None:
    """Spark Connect has one; the filter is no place to fail."""
    session_facts.install_log_filter()
    broken = logging.LogRecord(logger.name, logging.DEBUG, "client.py", 1, "compression is disabled", ("why",), None)
    assert logging.getLogger(logger.name).filter(broken)
    assert broken.args == ("why",)
