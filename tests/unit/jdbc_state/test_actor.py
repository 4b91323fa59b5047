"""Who it was: the user and the program of an action, the sink of a line in a log, the driver of a session."""

from __future__ import annotations

import getpass
import os
import socket
import sys
import threading
from contextvars import copy_context
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest
from hypothesis import given, strategies as st

import jdbc_state
import spark_2pc_sink
from jdbc_state import Actor, application_name
from jdbc_state.actions import ACTIONS, ROUTINE
from jdbc_state.sessions import (
    APPLICATION_NAME_BYTES_MAX,
    application_name_prefix,
    presence_name,
)
from jdbc_state.sink_log import FIELD, log_for_sink, sink_log


def test_it_is_whoever_runs_the_process() -> None:
    actor = Actor.of_this_process("job", "a reason")
    assert actor == Actor(os_user=getpass.getuser(), host=socket.gethostname(), program="job", reason="a reason")
    assert Actor.of_this_process().reason is None


@pytest.mark.parametrize("error", [KeyError("uid not found"), OSError("no user")])
def test_a_number_without_a_name_is_told_as_it_is(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """As in a container that runs under any user id. Python 3.13 raises OSError."""

    def getuser() -> str:
        raise error

    monkeypatch.setattr(getpass, "getuser", getuser)
    assert Actor.of_this_process("job").os_user == str(os.getuid())


@pytest.mark.parametrize(
    ("name", "arguments", "shown"),
    [
        ("spark_2pc_sink.cli.__main__", ["x"], "spark_2pc_sink.cli"),
        ("reports.nightly", ["x"], "reports.nightly"),
        (None, ["/usr/bin/spark-2pc"], "spark-2pc"),
        (None, [""], "python"),
    ],
)
def test_the_program_is_its_module_or_its_script(
    monkeypatch: pytest.MonkeyPatch, name: str | None, arguments: list[str], shown: str
) -> None:
    """An interactive session has neither."""
    main = ModuleType("__main__")
    if name is not None:
        monkeypatch.setattr(main, "__spec__", type("Spec", (), {"name": name}))
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setattr(sys, "argv", arguments)
    assert Actor.of_this_process().program == shown


def test_what_people_decide_is_never_trimmed() -> None:
    decided = {"accept_loss", "accept_replay", "adopt", "drop", "force_terminate", "open_transaction"}
    assert ACTIONS.keys() - {*ROUTINE} == decided


#: Logs that are of no sink, or of all: those of servers, libraries and the command line, and the one of all others.
_OF_NO_SINK: Final = (
    "reference",
    "testing",
    "monitoring",
    "cli",
    "topic_reader.py",
    "sink_log.py",
    "session_facts.py",
    "msk.py",
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


IDS = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=255) | st.text(
    "ab:#2pc1é", min_size=1, max_size=60
)
GENERATIONS = st.integers(1, 2**63 - 1)


@given(IDS, GENERATIONS)
def test_it_is_never_cut_off_or_rewritten_by_the_server(transactional_id: str, generation: int) -> None:
    """C2, D10: PostgreSQL cuts at 63 bytes and rewrites what is not printable ASCII; the name must be found again."""
    presence = presence_name('"public"."state"', transactional_id, generation)
    for name in (application_name(transactional_id, generation), presence):
        assert len(name.encode()) <= APPLICATION_NAME_BYTES_MAX
        assert name.isascii()
        assert name.isprintable()
    assert presence.rpartition(":")[2] == str(generation)


@given(IDS, IDS, GENERATIONS, GENERATIONS)
def test_it_belongs_to_one_id_and_one_generation(one: str, other: str, first: int, second: int) -> None:
    """B21: an id with a colon is not another id with a generation."""
    same = application_name(one, first) == application_name(other, second)
    assert same == ((one, first) == (other, second))
    rest = application_name(one, first).removeprefix(application_name_prefix(other))
    assert (rest.isascii() and rest.isdecimal()) == (one == other)


@given(IDS, IDS, st.sampled_from(["a.state", "b.state"]), st.sampled_from(["a.state", "b.state"]))
def test_a_driver_is_seen_as_that_of_its_own_sink(one: str, other: str, table: str, table_of_other: str) -> None:
    """D10: told apart by id and state table; and not taken for a deciding transaction, which a newer claim ends."""
    name = presence_name(table, one, 7)
    assert (name == presence_name(table_of_other, other, 7)) == ((one, table) == (other, table_of_other))
    assert not name.startswith(application_name_prefix(one))
