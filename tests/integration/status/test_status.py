"""`status` on real servers: every condition of a sink, and one side out of reach."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import make_url, text

from spark_2pc_sink import StatusReport, cli, status
from spark_2pc_sink.cli import exits
from tests.conftest import MakeTopic
from tests.harness.damage import HISTORY, STATE
from tests.harness.json_contract import read_output
from tests.harness.providers import Broker
from tests.integration.state.state_stores import admin
from tests.integration.status.sinks import SEPARATOR, Sinks, sinks_on

#: Beside the time-out itself: for threads that begin and end on a busy machine.
GRACE_S = 3.0


@pytest.fixture
def sinks(kafka_without_2pc: Broker, database: str, topic: MakeTopic) -> Iterator[Sinks]:
    with sinks_on(kafka_without_2pc, database, topic(broker=kafka_without_2pc)) as made:
        yield made


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port that accepts connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def look(sinks: Sinks, **options: Any) -> StatusReport:
    """Both sides, in Python."""
    sides: dict[str, Any] = {"kafka": {"bootstrap.servers": sinks.broker.bootstrap}, "database": sinks.database}
    return status(**{**sides, **options})


def words(sinks: Sinks, *more: str) -> list[str]:
    """The command line."""
    return ["status", "--bootstrap-server", sinks.broker.bootstrap, "--database", sinks.database, *more]


def name_of(transactional_id: str) -> str:
    return transactional_id.partition(SEPARATOR)[2]


def conditions(found: StatusReport) -> dict[str, str]:
    """By the names in the test."""
    return {name_of(report.transactional_id): report.condition for report in found.sinks}


def timed(look_now: Callable[[], StatusReport], limit_s: float) -> StatusReport:
    """A look that must end in time."""
    began_s = time.monotonic()
    found = look_now()
    assert time.monotonic() - began_s < limit_s + GRACE_S
    return found


def test_every_condition_at_one_look(sinks: Sinks, capsys: pytest.CaptureFixture[str]) -> None:
    """D2, D6: what needs a person is in doubt; a batch at work and a row of another cluster are not."""
    sinks.ended("fine", commit=True)
    sinks.ended("owed", commit=False)
    sinks.decided("decided")
    sinks.decided("away", cluster_id="another-cluster")
    sinks.open("left-open")
    sinks.open("at-work", lives=True)
    sinks.decided("lost")
    sinks.sql("DELETE FROM kafka_transaction_state WHERE transactional_id = :id", id=sinks.id_of("lost"))
    found = look(sinks)
    assert conditions(found) == {
        "fine": "fine",
        "owed": "owed",
        "decided": "in_doubt",
        "away": "elsewhere",
        "left-open": "in_doubt",
        "at-work": "at_work",
        "lost": "in_doubt",
    }
    by_name = {name_of(report.transactional_id): report for report in found.sinks}
    assert [action.kind for action in by_name["lost"].actions] == ["rebuild_row", "commit"]
    assert [action.kind for action in by_name["left-open"].actions] == ["abort"]
    for name in ("left-open", "at-work"):
        assert by_name[name].prepared_s is not None
        assert by_name[name].in_doubt_s is None
    assert by_name["decided"].prepared_s is None
    assert "Kafka is owed batch 0: the table has its 2 rows since " in by_name["owed"].reason
    assert "and Kafka aborted its 3 records" in by_name["owed"].reason
    assert by_name["owed"].remedies[0].startswith("start the job")
    assert (by_name["away"].kafka, by_name["away"].elsewhere) == (None, True)
    assert cli.main(words(sinks, "--json")) == exits.EXIT_IN_DOUBT
    printed = read_output(capsys.readouterr().out)
    assert list(map(name_of, printed["in_doubt"])) == ["decided", "left-open", "lost", "owed"]


# --- one side out of reach --------------------------------------------------------------------------------------------


def test_kafka_out_of_reach(sinks: Sinks, monkeypatch: pytest.MonkeyPatch) -> None:
    """B25: what the database knows is shown within the time-out, also where a resolver never answers."""
    sinks.ended("done", commit=True)
    sinks.ended("owed", commit=False)
    sinks.decided("decided")
    hung = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: hung.wait(60))
    found = timed(lambda: look(sinks, kafka={"bootstrap.servers": "kafka.invalid:9092"}, timeout_s=4), 4)
    hung.set()
    assert conditions(found) == {"done": "fine", "owed": "owed", "decided": "in_doubt"}
    assert found.kafka_problem
    assert not found.database_problem


@pytest.mark.parametrize("fault", ["silent", "locked"])
def test_the_database_out_of_reach(sinks: Sinks, silent_port: int, fault: str) -> None:
    """B25: what Kafka has open is shown, with the reason why the database could not be read."""
    sinks.decided("decided")
    sinks.open("left-open")
    sinks.ended("fine", commit=True)
    port = silent_port if fault == "silent" else make_url(sinks.database).port
    url = make_url(sinks.database).set(port=port).render_as_string(hide_password=False)
    with admin(sinks.database) as engine, engine.connect() as connection:
        if fault == "locked":
            connection.execute(text("SET application_name = 'vacuum of somebody'"))
            connection.execute(text("BEGIN"))
            connection.execute(text("LOCK TABLE kafka_transaction_state IN ACCESS EXCLUSIVE MODE"))
        found = timed(lambda: look(sinks, database=url, timeout_s=4, match=sinks.id_of("[dl]e*")), 4)
        one = timed(lambda: look(sinks, database=url, timeout_s=4, transactional_id=sinks.id_of("fine")), 4)
        connection.rollback()
    assert conditions(found) == {"decided": "unclear", "left-open": "unclear"}
    assert found.database_problem
    assert ("vacuum of somebody" in found.database_problem) is (fault == "locked")
    assert not found.kafka_problem
    assert all(report.prepared_s is not None and report.known is None for report in found.sinks)
    assert conditions(one) == {"fine": "unclear"}
    assert one.sinks[0].reason.startswith("Kafka has no open transaction of this id. The")


def test_both_out_of_reach(silent_port: int) -> None:
    """B25: each has its reason."""
    kafka: dict[str, Any] = {"bootstrap.servers": f"127.0.0.1:{silent_port}"}
    database = f"postgresql://u:secret@127.0.0.1:{silent_port}/d"
    found = timed(lambda: status(kafka=kafka, database=database, timeout_s=2), 2)
    assert (found.sinks, bool(found.kafka_problem), bool(found.database_problem)) == ((), True, True)
    assert "secret" not in json.dumps(found.as_json())


# --- what is not there ------------------------------------------------------------------------------------------------


def test_a_row_that_is_gone_with_its_history(sinks: Sinks, capsys: pytest.CaptureFixture[str]) -> None:
    """D2: what Kafka knows of the id is said, and not that no sink has run."""
    sinks.open("gone")
    for table in (STATE, HISTORY):
        sinks.sql(f"DELETE FROM {table}")
    found = look(sinks, match=sinks.id_of("*"))
    assert found.sinks == ()
    assert "and its history are empty" in found.note
    assert found.note.endswith(f"Kafka has open transactions of {sinks.id_of('gone')}")
    code = cli.main(words(sinks, "--transactional-id", sinks.id_of("gone")))
    printed = capsys.readouterr().out
    assert code == exits.EXIT_IN_DOUBT
    assert "the state table and its history have nothing for this id; Kafka has Ongoing " in printed
    assert ", open for 0:00:" in printed
    assert cli.main(words(sinks, "--transactional-id", "mistyped")) == exits.EXIT_NOT_KNOWN
    assert "mistyped: UNKNOWN, the state table has no row for this id" in capsys.readouterr().out
