"""Logs name their sink: those that know it, those of a thread at work for it, and no other."""

from __future__ import annotations

import threading
from contextvars import copy_context
from pathlib import Path
from typing import Final

import pytest

import jdbc_state
import spark_2pc_sink
from jdbc_state.sink_log import FIELD, log_for_sink, sink_log

#: Logs that are of no sink, or of all: those of servers, libraries and the command line, and the one of all others.
_OF_NO_SINK: Final = (
    *("reference", "testing", "monitoring", "cli"),
    *("topic_reader.py", "sink_log.py", "metrics_server.py", "session_facts.py", "msk.py"),
)


def logged(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str | None]]:
    found = [(record.getMessage(), getattr(record, FIELD, None)) for record in caplog.records]
    caplog.clear()
    return found


def test_each_line_names_the_sink(caplog: pytest.LogCaptureFixture) -> None:
    """In the message, for people, and in the record, for formatters; whatever characters are in the id."""
    log = sink_log(__name__, "100 %s")
    log.warning("%d batches", 3)
    log.warning("none")
    assert logged(caplog) == [("100 %s: 3 batches", "100 %s"), ("100 %s: none", "100 %s")]


def test_what_knows_no_sink_logs_for_the_one_that_its_thread_is_at_work_for(caplog: pytest.LogCaptureFixture) -> None:
    """Also in a thread that begins there with a copy of the context; and the innermost counts."""
    log = sink_log(__name__)
    log.warning("before")
    with log_for_sink("orders"):
        with log_for_sink("payments"):
            log.warning("within")
        context = copy_context()
        thread = threading.Thread(target=context.run, args=(log.warning, "beside"))
        thread.start()
        thread.join()
        sink_log(__name__, "own").warning("named")
    log.warning("after")
    assert logged(caplog) == [
        ("before", None),
        ("payments: within", "payments"),
        ("orders: beside", "orders"),
        ("own: named", "own"),
        ("after", None),
    ]


def test_every_log_of_the_packages_is_one_of_a_sink() -> None:
    """So that no line can forget the id."""
    roots = [Path(str(package.__file__)).parent for package in (spark_2pc_sink, jdbc_state)]
    others = {
        str(path.relative_to(root.parent))
        for root in roots
        for path in root.rglob("*.py")
        if "logging.getLogger(" in path.read_text() and not set(_OF_NO_SINK) & set(path.parts)
    }
    assert others == set()
