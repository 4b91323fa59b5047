"""Sinks in every condition, both sides that show them, and the dashboard and the exporter served over these."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from typing import Any, cast

from waitress import wasyncore

from jdbc_state import ActionLine, HistoryLine, SqlStateStore, StateRow
from jdbc_state.sessions import DriverSession, Liveness
from spark_2pc_sink.errors import HaltCause
from spark_2pc_sink.ids import ProducerIdAndEpoch, TransactionState
from spark_2pc_sink.monitoring import Watched
from spark_2pc_sink.monitoring.dashboard.access import DashboardAccess
from spark_2pc_sink.monitoring.dashboard.app import make_app
from spark_2pc_sink.monitoring.exporter import SinkCollector
from spark_2pc_sink.recipe.resolve import KafkaView
from spark_2pc_sink.recovery.report import Action, RecoveryReport, StatusReport, UnreadableSink
from spark_2pc_sink.web_server import MetricsAccess, http_server, metrics_app
from tests.unit.recovery.test_report import LOOK, ROW

NOW = datetime(2026, 11, 24, 12, 0, tzinfo=timezone.utc)
ALIVE = Liveness(
    alive=True, detail="pid 4711 from 10.0.3.17", session=DriverSession(4711, "job", hidden=False, address="10.0.3.17")
)
DEAD = Liveness(alive=False, detail="no database session of claim 7")
UNKNOWN = Liveness(alive=None, detail="behind a pooler, a driver is visible only during its transactions")
#: An id that a page must not take for markup.
MARKUP = "<script>alert('x')</script>"
SECRET = "of-the-database"
SASL_SECRET = "of-the-brokers"
FIGURES = {
    "record_bytes": 812,
    "seconds": 1.5,
    "step_seconds": {"place": 0.1, "produce": 0.9, "decide": 0.5},
    "source_lag": 40,
    "event_delay_s": 2.5,
}


def row(name: str = "orders", *, status: str = "done", batch: int | None = 41, **changes: Any) -> StateRow:
    """A state row, decided two minutes ago."""
    made = replace(
        ROW,
        transactional_id=name,
        status=status,
        generation=7,
        run_id="run",
        batch_id=batch,
        row_count=1_200,
        record_count=1_100,
        digest="",
        topic_ids={},
        decision=42,
        claimed_at=NOW - timedelta(hours=3),
        decided_at=NOW - timedelta(minutes=2),
        age_s=120.0,
        decided_age_s=120.0,
    )
    return replace(made, **changes)


def sink(name: str = "orders", of: StateRow | None = None, **changes: Any) -> RecoveryReport:
    """A sink that is well, unless ``changes`` say otherwise."""
    made = row(name) if of is None else of
    kafka = KafkaView(TransactionState.COMPLETE_COMMIT, ProducerIdAndEpoch(5, 1), 2, "cluster")
    fine = replace(LOOK, transactional_id=name, before=made, row=made, kafka=kafka, driver=ALIVE)
    return replace(fine, **changes)


def in_doubt(name: str = "orders", driver: Liveness = DEAD) -> RecoveryReport:
    """A sink whose driver was killed after its decision."""
    commit = Action("commit", "would commit the transaction 5:1")
    return sink(name, row(name, status="decided"), settled=False, driver=driver, actions=(commit,))


def owed(name: str = "orders") -> RecoveryReport:
    return sink(name, row(name, status="owed"), settled=False, driver=DEAD)


def halted(cause: HaltCause, name: str = "orders") -> RecoveryReport:
    return replace(in_doubt(name), cause=cause, actions=(), remedies=("compare both sides", "spark-2pc recover"))


def lines(*figures: dict[str, Any], name: str = "orders") -> list[HistoryLine]:
    """Lines of the history, the newest first: as many as there are figures."""
    return [
        HistoryLine("decided", row(name, batch=41 - age, decision=42 - age), given) for age, given in enumerate(figures)
    ]


ACTION = ActionLine(
    number=1,
    transactional_id="orders",
    at=NOW,
    action="drop",
    batch_id=40,
    generation=6,
    role="ops",
    os_user="operator",
    host="night-1",
    program="spark-2pc",
    reason="Kafka has all of it",
)
EVERYTHING = StatusReport(
    sinks=(
        sink("clicks"),
        in_doubt(),
        owed("payments"),
        halted(HaltCause.TOPIC_REMADE, MARKUP),
        sink("archive", elsewhere=True, settled=False),
    ),
    unreadable=(UnreadableSink("ledger", "database", "its pair 'spoiled' is none"),),
)


@dataclass(frozen=True, kw_only=True)
class Shown(Watched):
    """Both sides as a test wants them; what was recovered is kept in ``recovered``."""

    connections: Mapping[str, Any] = field(
        repr=False,
        default_factory=lambda: {
            "kafka": {
                "bootstrap.servers": "broker:9092",
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "PLAIN",
                "sasl.username": "ops",
                "sasl.password": SASL_SECRET,
            },
            "database": f"postgresql://ops:{SECRET}@db.internal:5433/shop",
        },
    )
    timeout_s: int = 8
    found: StatusReport = EVERYTHING
    history: tuple[HistoryLine, ...] = ()
    outcome: RecoveryReport | Exception = field(default_factory=sink)
    recovered: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def look(self, transactional_id: str | None = None) -> StatusReport:
        """What the test said, of one sink or of all."""
        if transactional_id is None:
            return self.found
        ours = tuple(each for each in self.found.sinks if each.transactional_id == transactional_id)
        return replace(self.found, sinks=ours, unreadable=())

    @contextmanager
    def store(self) -> Iterator[SqlStateStore]:
        yield cast("SqlStateStore", self)

    def read_history(self, transactional_id: str, *, last: int) -> list[HistoryLine]:
        assert transactional_id
        return list(self.history[:last])

    def read_actions(self, transactional_id: str, *, last: int) -> list[ActionLine]:
        return [replace(ACTION, transactional_id=transactional_id)][:last]

    def recover(self, transactional_id: str, **choices: Any) -> RecoveryReport:
        """Note it, and answer with the outcome of the test."""
        self.recovered.append((transactional_id, choices))
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


DEADLINE_S = 20


@contextmanager
def served(app: Any) -> Iterator[int]:
    listening = socket.create_server(("127.0.0.1", 0))
    server: Any = http_server(app, listening)
    serving = threading.Thread(target=server.run)
    serving.start()
    try:
        yield listening.getsockname()[1]
    finally:
        # Its loop ends when nothing is open; a browser would keep its connections.
        server.trigger.pull_trigger(lambda: wasyncore.close_all(server._map, ignore_all=True))
        serving.join(DEADLINE_S)
        server.task_dispatcher.shutdown()


def dashboard(access: DashboardAccess, watched: Shown | None = None) -> AbstractContextManager[int]:
    return served(make_app(watched or Shown(), access))


def figures(access: MetricsAccess, watched: Shown | None = None) -> AbstractContextManager[int]:
    collector = SinkCollector(watched or Shown(found=StatusReport(sinks=(sink(),))))
    return served(metrics_app(collector, access))
