"""`status` on real servers: every condition of a sink, and one side out of reach."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
import pytest
from sqlalchemy import make_url, text

from jdbc_state import SqlStateStore, StateRow
from spark_2pc_sink import StatusReport, cli, status
from spark_2pc_sink.cli import output
from spark_2pc_sink.clock import now_ms
from spark_2pc_sink.ids import PreparedTxnState, ProducerIdAndEpoch, TopicPartition
from spark_2pc_sink.kafka.batch_sender import ProducedTransaction
from spark_2pc_sink.kafka.cluster import Cluster
from spark_2pc_sink.kafka.produce_session import ProduceSession
from spark_2pc_sink.kafka.transaction_client import TransactionClient
from spark_2pc_sink.options import KafkaOptions
from spark_2pc_sink.wire.arrow_layout import EncodedRows
from tests.conftest import MakeTopic
from tests.harness.damage import HISTORY, STATE
from tests.harness.json_contract import read_output
from tests.harness.providers import Broker
from tests.harness.sql import run_sql
from tests.integration.state.state_stores import FIRST, admin, claim, row_of, sql_store

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
    sinks.sql("DELETE FROM kafka_transaction_state WHERE transactional_id = %s", sinks.id_of("lost"))
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
    assert cli.main(words(sinks, "--json")) == output.EXIT_IN_DOUBT
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
    assert code == output.EXIT_IN_DOUBT
    assert "the state table and its history have nothing for this id; Kafka has Ongoing " in printed
    assert ", open for 0:00:" in printed
    assert cli.main(words(sinks, "--transactional-id", "mistyped")) == output.EXIT_NOT_KNOWN
    assert "mistyped: UNKNOWN, the state table has no row for this id" in capsys.readouterr().out


#: Between what tells the sinks of one test from those of others on the same broker, and the name in the test.
SEPARATOR: Final = "."


class Sinks:
    """Makes sinks on one broker and in one database; the topic's name is before that of each sink."""

    def __init__(self, broker: Broker, database: str, topic: str, stack: ExitStack) -> None:
        self.broker = broker
        self.database = database
        self._topic = topic
        self._stack = stack
        self._options = KafkaOptions.parse({"bootstrap.servers": broker.bootstrap})
        self._cluster = stack.enter_context(Cluster(self._options))
        self._partition = TopicPartition(topic, 0)
        self._here = self._cluster.features().cluster_id
        self._store = self._opened()

    def id_of(self, name: str) -> str:
        return f"{self._topic}{SEPARATOR}{name}"

    def claimed(
        self, name: str, *, cluster_id: str | None = None, lives: bool = False
    ) -> tuple[StateRow, TransactionClient]:
        """A sink whose driver has claimed its row, and taken a pair; one that ``lives`` goes on for the whole test."""
        store = self._opened() if lives else self._store
        name = self.id_of(name)
        row = claim(store, name, cluster_id=cluster_id or self._here)
        if not lives:
            store._presence.end()
        client = TransactionClient(self._cluster, name, self._options)
        return store.mark_initialized(name, row.generation, str(self.pair(client))), client

    def open(self, name: str, *, lives: bool = False) -> StateRow:
        """A sink in mid-batch: its transaction is open, and nothing is decided."""
        row, client = self.claimed(name, lives=lives)
        self._send(client.transactional_id, self.pair(client))
        return row

    def decided(self, name: str, *, cluster_id: str | None = None) -> StateRow:
        """A sink whose driver was killed behind its decision: Kafka has the transaction open."""
        row, client = self.claimed(name, cluster_id=cluster_id)
        pair = self.pair(client)
        written = self._send(client.transactional_id, pair)
        batch = replace(FIRST, prepared=str(pair), kafka_offsets=written, topic_ids={})
        with self._store.deciding(row.transactional_id, row.generation) as transaction:
            transaction.decide(batch)
        return row

    def ended(self, name: str, *, commit: bool) -> None:
        """A sink whose decided transaction has ended, and whose driver has noted it: done, or owed."""
        row = self.decided(name)
        name = row.transactional_id
        pair = PreparedTxnState(row_of(self._store, name).prepared_transaction_state).producer
        assert pair is not None
        answer = TransactionClient(self._cluster, name, self._options).end(pair, commit=commit)
        if commit:
            self._store.mark_done(name, row.generation, str(answer.producer or pair))
        else:
            self._store.mark_owed(name, row.generation)

    def pair(self, client: TransactionClient) -> ProducerIdAndEpoch:
        """A pair to begin a transaction with."""
        return client.usable_producer().producer

    def sql(self, statement: str, *values: object) -> None:
        run_sql(self.database, statement, *values)

    def _send(self, transactional_id: str, pair: ProducerIdAndEpoch) -> dict[str, tuple[int, int]]:
        """Three records of a transaction; where they are."""
        session = ProduceSession(
            self._cluster,
            ProducedTransaction(transactional_id, pair, self._cluster.features().transaction_version),
            self._options,
            timestamp_ms=now_ms(),
        )
        values = pa.array([b"a", b"b", b"c"], pa.binary())
        with closing(session):
            session.append(self._partition, EncodedRows.of(values, values, None))
            written = session.flush()
        return {str(where): (receipt.first_offset, receipt.last_offset) for where, receipt in written.items()}

    def _opened(self) -> SqlStateStore:
        return self._stack.enter_context(sql_store(self.database))


@contextmanager
def sinks_on(broker: Broker, database: str, topic: str) -> Iterator[Sinks]:
    """A maker of sinks, closed at the end."""
    with ExitStack() as stack:
        yield Sinks(broker, database, topic, stack)
