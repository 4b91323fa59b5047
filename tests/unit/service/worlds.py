"""Both sides of one transactional id in memory, a service's process between them, and what goes wrong at any point.

A point is before a request takes effect, and after it, before its answer is there. At one of them a fault may happen:
the process is killed, or the request fails while the process goes on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from sqlalchemy import Connection

from jdbc_state import DECIDED, Decision, KeptRecords, StateRow
from jdbc_state.errors import StateStoreError
from jdbc_state.model import Move
from jdbc_state.state_store import KeepingStore
from spark_2pc_sink.errors import DualWriteError, InDoubtError, KafkaTimeoutError, OutcomeUnknownError
from spark_2pc_sink.ids import ProducerIdAndEpoch
from spark_2pc_sink.kafka.error_policy import COORDINATOR_BUSY, kafka_error
from spark_2pc_sink.kafka.produce_session import AcknowledgedBatches
from spark_2pc_sink.kafka.transaction_client import EndTxnAnswer, EndTxnLater
from spark_2pc_sink.options import KafkaOptions, ServiceOptions
from spark_2pc_sink.recovery.recovery import Recovery
from spark_2pc_sink.service.id_pool import IdPool
from spark_2pc_sink.service.id_writer import IdWriter, OwnedId
from spark_2pc_sink.service.service import Commitment
from spark_2pc_sink.service.transaction import EncodedRecords, OutgoingRecord, encode
from spark_2pc_sink.wire.record_batch import PlacedBatch
from tests.unit.fakes.clock import FakeClock
from tests.unit.fakes.fake_kafka import PARTITION, FakeKafka
from tests.unit.fakes.memory_store import MemoryStateStore

_T = TypeVar("_T")
ID = "orders"
OPTIONS = ServiceOptions.parse(
    transactional_id=ID, kafka={"bootstrap.servers": "unused:9092"}, database="postgresql://unused/none"
)


class KilledError(BaseException):
    """The process is gone."""


class LostConnectionError(Exception):
    """What a driver of a database raises."""


@dataclass
class Fault:
    """One fault.

    Attributes:
        at: number of the point, from 0; None for none.
        kind: ``kill``, ``fail``, or ``stall``: the request fails so late that the transaction has timed out.
    """

    at: int | None = None
    kind: str = "kill"


class ScriptedKafka(FakeKafka):
    """Kafka whose requests have points."""

    def __init__(self, world: World, **settings: Any) -> None:
        super().__init__(**settings)
        self._world = world

    def request(self, what: str, effect: Callable[[], _T]) -> _T:
        return self._world.at_points(
            what, lambda: super(ScriptedKafka, self).request(what, effect), lambda: _unanswered(what)
        )

    def begin_end(self, producer: ProducerIdAndEpoch, *, commit: bool) -> EndTxnLater | None:
        """EndTxn takes effect now, and its answer is taken later.

        A request that fails was lost on its way; one that stalls could not be sent.
        """
        try:
            self._world.pass_point(lambda: _unanswered("end"))
        except OutcomeUnknownError:
            return (lambda: None) if self._world.struck_by == "fail" else None
        reply = self.broker.end(producer, commit=commit)

        def answer() -> EndTxnAnswer | None:
            try:
                self._world.pass_point(lambda: _unanswered("end"))
            except OutcomeUnknownError:
                return None
            return None if reply.code in COORDINATOR_BUSY else self.answer_of(reply)

        return answer

    def send(
        self, producer: ProducerIdAndEpoch, transaction_version: int, batches: Sequence[PlacedBatch]
    ) -> AcknowledgedBatches:
        """What `BatchListSender` does."""
        return self._world.at_points("produce", lambda: self._send(producer, batches), lambda: _unanswered("produce"))

    def _send(self, producer: ProducerIdAndEpoch, batches: Sequence[PlacedBatch]) -> AcknowledgedBatches:
        (batch,) = batches
        answer = self.broker.produce(producer, batch.partition, (bytes(batch.payload),), 0)
        if answer.code:
            raise kafka_error("Produce", answer.code)
        at = (answer.base_offset, answer.base_offset)
        return AcknowledgedBatches({batch.partition: at}, {})


class ScriptedStore(MemoryStateStore, KeepingStore):
    """The state rows and the kept records, with points."""

    def __init__(self, world: World) -> None:
        super().__init__(history_batches=0)
        self._world = world
        self.kept: dict[str, KeptRecords] = {}
        self.never_kept = False

    def read_kept(self, transactional_id: str) -> KeptRecords | None:
        return self.kept.get(transactional_id)

    def decide_within(
        self,
        connection: Connection,
        transactional_id: str,
        generation: int,
        decision: Decision,
        *,
        settled: str | None = None,
        kept: KeptRecords | None = None,
    ) -> None:
        transaction = cast("Transaction", connection)
        before = self._rows[transactional_id]
        try:
            if settled is not None:
                self._rows[transactional_id] = self.moved(
                    Move("mark_done", transactional_id, generation, {"settled": settled})
                )
            transaction.pending = self.moved(decision.move(transactional_id, generation))
            transaction.kept = None if self.never_kept else kept
        finally:
            self._rows[transactional_id] = before

    def commit(self, transaction: Transaction) -> None:
        """COMMIT of the service's own transaction."""
        pending = transaction.pending
        assert pending is not None
        if self._rows[ID].generation != pending.generation:
            # The claim has ended the session.
            raise LostConnectionError
        self._rows[ID] = pending
        if transaction.kept is not None:
            self.kept[ID] = transaction.kept

    def _claim(self, claimant: Any) -> StateRow:
        return self._world.at_points("claim", lambda: super(ScriptedStore, self)._claim(claimant), _lost)

    def _move(self, move: Any) -> StateRow:
        return self._world.at_points(move.operation, lambda: super(ScriptedStore, self)._move(move), _lost)

    def _commit(self, transaction: Any) -> None:
        self._world.at_points("resend", lambda: super(ScriptedStore, self)._commit(transaction), _lost)


@dataclass
class Transaction:
    """The database transaction of a block."""

    world: World
    name: str
    pending: StateRow | None = None
    kept: KeptRecords | None = None

    def commit(self) -> None:
        """COMMIT."""
        self.world.at_points("commit", self._commit, LostConnectionError)

    def _commit(self) -> None:
        self.world.store.commit(self)
        self.world.rows.append(self.name)


@dataclass
class World:
    """Both sides, and the process.

    Attributes:
        two_phase_commit: whether the broker grants it.
        transaction_version: of the broker.
        in_background: whether blocks return before Kafka has followed.
        rows: what the table has: names of transactions.
        fault: what goes wrong next.
        points: how many were passed.
        then: what goes wrong after it.
        dead: whether the process was killed.
        struck_by: the kind of the newest fault.
    """

    two_phase_commit: bool = False
    transaction_version: int = 2
    in_background: bool = False
    rows: list[str] = field(default_factory=list)
    fault: Fault = field(default_factory=Fault)
    points: int = 0
    then: Fault = field(default_factory=Fault)
    dead: bool = False
    struck_by: str = ""

    def __post_init__(self) -> None:
        self.kafka = ScriptedKafka(
            self, transaction_version=self.transaction_version, two_phase_commit_enable=self.two_phase_commit
        )
        self.store = ScriptedStore(self)
        self.store.prepare_schema()
        self.clock = FakeClock()
        self.records: dict[bytes, str] = {}
        self.writer = self.new_writer()

    def at_points(self, what: str, effect: Callable[[], _T], failure: Callable[[], Exception]) -> _T:
        """Carry out a request, unless its point has a fault."""
        self.pass_point(failure)
        done = effect()
        self.pass_point(failure)
        return done

    def pass_point(self, failure: Callable[[], Exception]) -> None:
        """Go on, unless there is a fault at this point."""
        number, self.points = self.points, self.points + 1
        if number != self.fault.at:
            return
        kind = self.struck_by = self.fault.kind
        self.fault, self.then = self.then, Fault()
        if kind == "kill":
            self.dead = True
            raise KilledError
        if kind == "stall" and not self.two_phase_commit:
            self.kafka.time_out()
        raise failure()

    # --- the process ---------------------------------------------------------------------------------------------

    def new_recovery(self) -> Recovery:
        """Of a process that has just begun."""
        return Recovery(OPTIONS, kafka=self.kafka, store=self.store, clock=self.clock)

    def new_writer(self) -> IdWriter:
        """The id in such a process."""
        return IdWriter(
            OwnedId(ID, OPTIONS.owner, "run", settle_deadline_ms=60_000),
            recovery=self.new_recovery(),
            kafka=self.kafka,
            store=self.store,
            send=self.kafka.send,
            clock=self.clock,
        )

    def restart(self, *, time_out: bool) -> None:
        """The process is killed; its transaction may time out before it is back."""
        if time_out and not self.two_phase_commit:
            self.kafka.time_out()
        self.dead, self.writer = False, self.new_writer()
        self.writer.recover(expected=self.store.read(ID))

    def acquire(self) -> IdWriter:
        """As the pool does."""
        return self.writer

    def release(self, writer: IdWriter) -> None:
        """As the pool does, whose keeper has all the time that it needs: faults come one at a time."""
        for _ in range(3):
            if self.dead or not writer.unsettled:
                return
            try:
                writer.recover()
            except DualWriteError:
                continue

    def run(self, name: str, *, roll_back: bool = False) -> bool | None:
        """One block, as `DualWrite` runs it: both sides have it, neither, or (None) that was not found out."""
        commitment = Commitment(cast("IdPool", self), self._encode)
        transaction = Transaction(self, name)
        try:
            commitment.send([OutgoingRecord.of(PARTITION.topic, name, name)])
            if roll_back:
                return False
            commitment.decide(cast("Connection", transaction))
            try:
                transaction.commit()
            except LostConnectionError:
                return commitment.commit_failed()
            commitment.committed()
            if not self.in_background:
                commitment.complete()
            elif not commitment.begin_completion():
                commitment.complete_in_background()
        except InDoubtError:
            return None
        except DualWriteError:
            return False
        finally:
            commitment.end()
        return True

    def _encode(self, records: Sequence[OutgoingRecord]) -> EncodedRecords:
        kafka: KafkaOptions = OPTIONS.kafka
        encoded = encode(records, kafka, partition_count=lambda _: 1, free=0, timestamp_ms=1)
        (batch,) = encoded.batches
        self.records[bytes(batch.payload)] = str(records[0].key, "ascii") if records[0].key else ""
        return encoded

    # --- what is there -------------------------------------------------------------------------------------------

    def committed(self) -> Counter[str]:
        self.kafka.broker.drain()
        return Counter(self.records[record] for record, _ in self.kafka.broker.logs[PARTITION].committed())

    def check(self) -> None:
        """Both sides have the same, each once."""
        assert self.committed() == Counter(self.rows)
        assert set(self.committed().values()) <= {1}

    def in_doubt(self) -> bool:
        """Whether the row says less than all."""
        row = self.store.read(ID)
        return row is not None and row.status == DECIDED


def _unanswered(what: str) -> Exception:
    kind = OutcomeUnknownError if what.startswith("end") else KafkaTimeoutError
    return kind(operation=what, deadline_ms=1, last_error="the connection was lost")


def _lost() -> Exception:
    return StateStoreError(operation="request", detail="the connection was lost", retriable=True)
