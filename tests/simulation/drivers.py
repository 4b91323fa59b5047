"""The job: a driver that Spark runs batch by batch, what a batch consists of, and a person's `spark-2pc recover`.

Each driver is a greenlet: the product's code is synchronous, and must be stopped in the middle of any call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

from greenlet import getcurrent, greenlet

from spark_2pc_sink import errors
from spark_2pc_sink.ids import BatchRange, TopicPartition
from spark_2pc_sink.options import OperatorDecision, RecoveryOptions
from spark_2pc_sink.recipe.resolve import OpenTransactionEnd
from spark_2pc_sink.recipe.steps import Step
from spark_2pc_sink.recovery.recovery import OperatorChoice, Recovery
from spark_2pc_sink.sink.driver.batch_driver import BatchDriver
from spark_2pc_sink.sink.driver.batch_values import (
    BatchRules,
    ProducedBatch,
    Replay,
    RunIds,
    RunOfQuery,
    Sides,
    TransactionTicket,
)
from spark_2pc_sink.sink.driver.on_decide import DecidingBatch
from spark_2pc_sink.sink.report import WrittenRows
from tests.simulation import faults
from tests.simulation.broker import LETTERS, PARTITIONS, TOPIC, Record, SimKafka
from tests.simulation.database import COPY, DEAD_LETTERS, ON_DECIDE, SimStore, connection_lost
from tests.simulation.schedule import TABLE_ALONE, TOPIC_ALONE
from tests.unit.fakes.batch_work import Results
from tests.unit.fakes.coordinator import TRANSACTIONAL_ID

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from jdbc_state import StateStore
    from tests.simulation.world import World


class DriverCrashedError(BaseException):
    """Unwinds a driver that dies. Not an `Exception`: the product's handlers must not see it."""


class Actor:
    """Something that runs, is stopped, and goes on.

    Args:
        body: what it runs; what that raises, who resumes it is told.
    """

    def __init__(self, body: Callable[[], None]) -> None:
        self._greenlet = greenlet(body)

    def resume(self) -> None:
        """Let it run until it stops or ends; called by the scheduler."""
        self._greenlet.parent = getcurrent()
        self._greenlet.switch()

    def stop(self) -> None:
        """Give the turn back; called by the actor itself."""
        scheduler = self._greenlet.parent
        assert scheduler is not None
        scheduler.switch()

    def kill(self) -> None:
        """Unwind it where it has stopped; called by the scheduler."""
        if self._greenlet:
            self._greenlet.throw(DriverCrashedError)


QUERY_ID: Final = "query"
ATTEMPTS_MAX: Final = 3
RESTORE_DEADLINE_MS: Final = 1_000
DECISION_MARGIN_MS: Final = 1_000
OPTIONS: Final = RecoveryOptions.parse(
    transactional_id=TRANSACTIONAL_ID,
    kafka={"bootstrap.servers": "unused:9092"},
    database="postgresql://unused/none",
    settle_deadline_ms=5_000,
)
#: What no server's answer leads to, but a call that does not fit the code.
MISFITS: Final = (TypeError, AttributeError, NameError)


class _NoTimes:
    """An observer of steps that takes no time: no schedule looks at them."""

    figures: ClassVar[dict[str, float]] = {}

    def __call__(self, step: Step) -> None: ...


_NO_TIMES: Final = _NoTimes()


@dataclass(frozen=True)
class OperatorOptions:
    """The options that a person gives to a job, or to a recovery from the command line.

    Args:
        accept_replay: the batch named with ``accept_replay`` of the job.
        open_transaction: how an open transaction ends whose decision is lost (``--open-transaction``).
    """

    adopt: bool = False
    accept_replay: int | None = None
    accept_loss: BatchRange | None = None
    decision: OperatorDecision | None = None
    batch_id: int | None = None
    open_transaction: OpenTransactionEnd | None = None

    def merged_with(self, others: OperatorOptions) -> OperatorOptions:
        """These, completed by the others."""
        return replace(
            self,
            adopt=self.adopt or others.adopt,
            accept_replay=others.accept_replay if self.accept_replay is None else self.accept_replay,
        )


class TaskFailedError(Exception):
    """A task whose executor was lost."""


@cache
def options_with(*, adopt: bool, accept_loss: BatchRange | None) -> RecoveryOptions:
    """The options of a recovery. Cached: each of a million drivers would validate them again."""
    return replace(OPTIONS, adopt=adopt, accept_loss=accept_loss)


class SimWork:
    """`BatchWork`: one task per partition, in turn."""

    def __init__(self, world: World, kafka: SimKafka, batch_id: int) -> None:
        self._world = world
        self._kafka = kafka
        self._batch_id = batch_id
        self._records: tuple[Record, ...] = ()
        self._written: tuple[Record, ...] = ()
        self._left_out: tuple[Record, ...] = ()

    def partitions(self) -> Iterable[TopicPartition]:
        """Both, also for an empty batch, and that of its letters, as the real work says."""
        return (*PARTITIONS, LETTERS) if self.letters() else PARTITIONS

    def produce(self, ticket: TransactionTicket, open_decision: Callable[[], Connection]) -> Results:
        """Run the tasks. The rows of a task are written while the next one runs; `copy_into` writes the last ones."""
        self._records = self._evaluate()
        self._written = ()
        topic_ids = {TOPIC: self._world.broker.topic_id}
        ready: tuple[Record, ...] = ()
        offsets: dict[TopicPartition, tuple[int, int]] = {}
        sent, rows = self._but(TABLE_ALONE), self._but(TOPIC_ALONE)
        for partition in PARTITIONS:
            records = _of_task(sent, partition)
            if not records and not _of_task(rows, partition):
                continue
            if ready and not ticket.kafka_only:
                self._copy(open_decision(), ready)
            if records:
                self._world.begins(ticket, self._batch_id)
                first = self.run_task(ticket, partition, records)
                offsets[partition] = (first, first + len(records) - 1)
            ready = _of_task(rows, partition)
        letters = self.letters()
        offsets |= self.send_letters(ticket, letters)
        if letters:
            topic_ids[LETTERS.topic] = self._world.broker.topic_id
        counts = ProducedBatch(
            len(rows),
            len(sent) + len(letters),
            digest_of(self._records + letters),
            offsets,
            expected_records=len(sent) + len(letters),
            topic_ids=topic_ids if sent or letters else {},
            bad_rows=len(self._left_out),
        )
        return Results(counts, self.copy_into)

    def letters(self) -> tuple[Record, ...]:
        """The letters of the topic, in their order; none where there is no such topic."""
        return tuple(sorted(self._left_out, key=lambda each: each.place)) if self._world.profile.letters else ()

    def send_letters(
        self, ticket: TransactionTicket, letters: tuple[Record, ...]
    ) -> dict[TopicPartition, tuple[int, int]]:
        """Send them from the driver, behind all that tasks send; where they are."""
        if not letters:
            return {}
        self._world.begins(ticket, self._batch_id)
        first = self._kafka.produce(ticket.producer, LETTERS, letters, 0)
        return {LETTERS: (first, first + len(letters) - 1)}

    def _but(self, other: str) -> tuple[Record, ...]:
        """The rows but for those that go to the other side alone."""
        outputs = self._world.profile.outputs
        return tuple(record for record in self._records if outputs[record.partition] != other)

    def run_task(self, ticket: TransactionTicket, partition: TopicPartition, records: tuple[Record, ...]) -> int:
        """One task. A second attempt of it refuses, as `partition_task` does."""
        try:
            return self._kafka.produce(ticket.producer, partition, records, 0)
        except TaskFailedError:
            return self.run_task_again(ticket, partition, records)

    def run_task_again(
        self, _ticket: TransactionTicket, _partition: TopicPartition, _records: tuple[Record, ...]
    ) -> int:
        raise errors.BatchRetryError(reason="a task ran again")

    def copy_into(self, connection: Connection) -> WrittenRows:
        """The COPY of what `produce` has left."""
        rest = tuple(record for record in self._but(TOPIC_ALONE) if record not in self._written)
        self._copy(connection, rest)
        if self._left_out:
            statement: Any = DEAD_LETTERS
            connection.execute(statement, self._left_out)  # type: ignore[arg-type]
        return WrittenRows(given=len(self._written), written=len(self._written))

    def _copy(self, connection: Connection, records: tuple[Record, ...]) -> None:
        statement: Any = COPY
        connection.execute(statement, records)  # type: ignore[arg-type]
        self._written += records
        if any(record.place in self._world.profile.bad for record in records):
            raise errors.ConstraintError(
                table="target", constraint="c", column="", sqlstate="23514", detail="it is bad"
            )

    def search(self, error: errors.DataError, open_decision: Callable[[], Connection]) -> bool:
        """The rows that the table refuses, found in one statement."""
        assert isinstance(error, errors.ConstraintError)
        statement: Any = "search"
        open_decision().execute(statement)
        found = tuple(record for record in self._evaluate() if record.place in self._world.profile.bad)
        self._left_out += found
        return bool(found)

    def recall(self) -> None:
        self._left_out = self._world.io(
            faults.SQL,
            "read-dead-letters",
            lambda: self._world.database.dead_letters(self._batch_id),
            lambda: connection_lost("read-dead-letters"),
        )

    def _evaluate(self) -> tuple[Record, ...]:
        left_out = {record.place for record in self._left_out}
        return tuple(record for record in self._world.evaluate(self._batch_id) if record.place not in left_out)

    def reread(self) -> Replay:
        """What Spark has under this id now."""
        self._records = self._evaluate()
        letters = self.letters()
        return Replay(len(self._but(TABLE_ALONE)) + len(letters), digest_of(self._records + letters))


def _of_task(rows: tuple[Record, ...], partition: TopicPartition) -> tuple[Record, ...]:
    """The rows of the task that owns a partition; further outputs share the partitions."""
    return tuple(record for record in rows if record.partition % len(PARTITIONS) == partition.partition)


def _add_own_part(connection: Any, batch: DecidingBatch) -> None:
    """What a user adds to a decision."""
    connection.add(ON_DECIDE, batch.batch_id)


def digest_of(records: tuple[Record, ...]) -> str:
    """32 digits that tell sets of records apart."""
    return f"{hash(records) & ((1 << 128) - 1):032x}" if records else ""


class JobDriver:
    """One run of the query, from its start to its end."""

    #: Those that the sink writes to; a command knows none.
    topics: tuple[str, ...] = (TOPIC,)

    def __init__(self, world: World, number: int, operator_options: OperatorOptions) -> None:
        self.world = world
        self.number = number
        self.operator_options = operator_options
        self.outcome = "running"
        self.actor = Actor(self._body)
        self._batch_id = 0
        self._kafka = SimKafka(world)
        self._store = cast("StateStore", SimStore(world))

    def __str__(self) -> str:
        return f"driver {self.number}"

    def run(self) -> None:
        world = self.world
        self._batch_id = world.next_batch
        driver = self.batch_driver()
        driver.recover()
        while self._batch_id < len(world.profile.batches):
            driver.write(self._batch_id, SimWork(world, self._kafka, self._batch_id))
            # Spark's commit log. A driver that dies before it gets the same batch again.
            world.io(faults.SPARK, f"spark-commit {self._batch_id}", self._note, _impossible)
            self._batch_id += 1

    def _note(self) -> None:
        self.world.note_batch(self._batch_id)

    def batch_driver(self) -> BatchDriver:
        return BatchDriver(
            Sides(self.recovery(), self._kafka, self._store, self.world),
            RunOfQuery(RunIds(QUERY_ID, f"run-{self.number}")),
            BatchRules(
                TRANSACTIONAL_ID,
                ATTEMPTS_MAX,
                DECISION_MARGIN_MS,
                RESTORE_DEADLINE_MS,
                self.operator_options.accept_replay,
                _add_own_part,
            ),
            _NO_TIMES,
        )

    def recovery(self) -> Recovery:
        """The real one, over this driver's connections."""
        return Recovery(
            options_with(adopt=self.operator_options.adopt, accept_loss=self.operator_options.accept_loss),
            kafka=self._kafka,
            store=self._store,
            clock=self.world,
            topics=self.topics,
            choice=OperatorChoice(
                self.operator_options.decision, self.operator_options.batch_id, self.operator_options.open_transaction
            ),
        )

    def _body(self) -> None:
        try:
            self.run()
            self.outcome = "finished"
        except DriverCrashedError:
            self.outcome = "crashed"
        except errors.SupersededError as error:
            self.outcome = "superseded"
            self.world.trace(f"{self}: {error}")
        except errors.HaltError as error:
            self.outcome = "halted"
            self.world.trace(f"{self}: {error}")
            self.world.note_halt(error, self._batch_id)
        except errors.DualWriteError as error:
            if isinstance(error.__cause__, MISFITS):
                raise  # the driver takes it for a failed attempt, and a mutant that does not fit would look caught
            self.outcome = f"failed: {type(error).__name__}"
            self.world.errors.append(error)
            self.world.trace(f"{self}: {error!r}")
        self.world.trace(f"{self} {self.outcome}")


class NextStart(JobDriver):
    """The query, started once more when all is done, with a batch that has no records."""

    def run(self) -> None:
        """It notices what the database has lost since: Spark's next batch does not follow the row's."""
        self._batch_id = len(self.world.profile.batches)
        driver = self.batch_driver()
        driver.recover()
        driver.write(self._batch_id, SimWork(self.world, self._kafka, self._batch_id))


class Intruder(JobDriver):
    """A job of another query that was given the same transactional id by mistake."""

    def __str__(self) -> str:
        return f"intruder {self.number}"

    def run(self) -> None:
        try:
            self.recovery().run(query_id="another", run_id="another")
        except errors.ClaimRefusedError:
            return
        message = "the claim of another query was granted"
        raise AssertionError(message)


class Operator(JobDriver):
    """A person who runs ``spark-2pc recover --take-over``, once."""

    topics = ()

    def __str__(self) -> str:
        return f"operator {self.number}"

    def run(self) -> None:
        self.recovery().run(query_id=None, run_id=None)


class Person(Operator):
    """A person who runs ``spark-2pc recover --take-over`` with further options; see `recovery.api.recover`."""

    def __str__(self) -> str:
        return f"person {self.number}"

    def run(self) -> None:
        """Where there is no row, none is made unless that was asked for."""
        if self._store.read_standing(TRANSACTIONAL_ID) is None and not self.operator_options.adopt:
            self.recovery().diagnosis.dry_run()
        else:
            super().run()


def _impossible() -> Exception:
    return AssertionError("Spark's commit log does not fail by itself")
