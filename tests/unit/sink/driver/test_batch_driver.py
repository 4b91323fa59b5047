"""The batch driver over sides in memory: steps, ways back, bad rows, batches that come again. A1, A7, D2."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from jdbc_state import StateRow
from spark_2pc_sink.errors import (
    AuthorizationError,
    BatchAttemptsExhaustedError,
    BatchRetryError,
    ConstraintError,
    DatabaseUnreachableError,
    HaltCause,
    InDoubtError,
    RecordTooLargeError,
    StateStoreError,
    TransactionExpiredError,
    UnstorableValueError,
)
from spark_2pc_sink.ids import ProducerIdAndEpoch
from spark_2pc_sink.recipe.placement import NOTHING_SHOWN, Placement, RunRecord
from spark_2pc_sink.recipe.steps import Step
from spark_2pc_sink.sink.driver.batch_driver import BatchDriver
from spark_2pc_sink.sink.driver.batch_values import (
    BatchRules,
    Decided,
    RunIds,
    RunOfQuery,
    Sides,
    TransactionTicket,
)
from tests.harness.halts import halts
from tests.unit.fakes.batch_work import FakeWork, Results
from tests.unit.fakes.coordinator import FakeTransaction
from tests.unit.fakes.fake_kafka import PARTITION
from tests.unit.recovery.test_recovery import ID, Sides as SidesInMemory


@pytest.fixture
def job() -> Job:
    made = Job()
    made.driver.recover()
    return made


def test_the_steps_come_in_the_order_of_the_recipe(job: Job) -> None:
    """KIP-939, Normal processing recipe; D4: the database decides before Kafka commits."""
    work = job.work()
    report = job.driver.write(0, work)
    assert job.steps == list(Step)
    assert work.log == ["produce", "copy", "close"]
    assert (report.placement, report.row_count, report.record_count, report.attempts) == (Placement.RUN, 3, 3, 1)
    assert (report.transactional_id, report.batch_id, report.record_bytes, report.prepared) == (ID, 0, 300, "0:0")
    assert job.kafka.committed == [ProducerIdAndEpoch(0, 0)]
    assert (job.row().status, job.row().settled, job.row().batch_id) == ("done", "0:1", 0)


def test_nothing_is_open_in_the_database_until_rows_need_it(job: Job) -> None:
    """An open transaction keeps PostgreSQL from vacuuming, so a job that has no rows yet begins none."""
    begun: list[Step] = []
    original = job.store.deciding

    def deciding(*arguments: Any) -> Any:
        begun.append(job.steps[-1])
        return original(*arguments)

    job.store.deciding = deciding  # type: ignore[method-assign, assignment]
    job.driver.write(0, job.work())
    job.driver.write(1, job.work(rows=0, records=0))
    job.driver.write(2, job.work(early=("early",)))
    assert begun == [Step.PREPARE, Step.BEGIN]


def test_a_decided_batch_cannot_be_aborted() -> None:
    """A2: after the decision there is no way back, by type: of all steps only the completing one takes such a batch."""
    taken_by = {
        name
        for name, step in inspect.getmembers(BatchDriver, inspect.isfunction)
        if Decided.__name__ in {kind for taken, kind in step.__annotations__.items() if taken != "return"}
    }
    assert taken_by == {"_complete"}


def test_an_error_after_the_decision_undoes_nothing(job: Job) -> None:
    """A2: what raises after COMMIT leads to recovery, which commits in Kafka; nothing is written twice."""
    errors = [BatchRetryError(reason="looked like a failed attempt")]

    def fail(step: Step) -> None:
        if step is Step.DECIDE and errors:
            raise errors.pop()

    job.on_step = fail
    work = job.work()
    assert job.driver.write(0, work).attempts == 1
    assert work.log == ["produce", "copy", "close"]
    assert (len(job.kafka.committed), job.kafka.aborted) == (1, [])
    assert job.row().status == "done"


@pytest.mark.parametrize("error", [BatchRetryError(reason="a task ran again"), RuntimeError("an executor was lost")])
def test_a_failed_attempt_is_thrown_away_and_the_batch_runs_in_a_new_transaction(
    job: Job, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """A4, A5, B30: the whole transaction is aborted; its records are never committed."""
    work = job.work(fail=[error])
    report = job.driver.write(0, work)
    assert f"{ID}: batch 0, attempt 1 of 3 failed: {error}" in caplog.messages
    assert (report.attempts, report.prepared) == (2, "0:2")
    first, second = (ticket.producer for ticket in work.tickets)
    assert job.kafka.aborted == [first]
    assert job.kafka.committed == [second]
    assert first != second


def test_a_row_that_cannot_be_stored_fails_at_once(job: Job) -> None:
    """C8: no retry would help; the Kafka half is aborted."""
    refused = UnstorableValueError(column="note", row_key="7", value="'\\x00'", rule="no NUL in text")
    work = job.work(fail=[refused])
    with pytest.raises(UnstorableValueError):
        job.driver.write(0, work)
    assert work.log == ["produce", "search"]
    assert len(job.kafka.aborted) == 1


@pytest.mark.parametrize(
    ("rows", "records", "copied", "left_out"), [(3, 2, 3, 0), (2, 3, 2, 0), (3, 3, 2, 0), (3, 2, 2, 1)]
)
def test_counts_that_differ_abort_the_attempt(job: Job, rows: int, records: int, copied: int, left_out: int) -> None:
    """B22, C10: rows read = records acknowledged or left out = rows copied, or nothing is decided."""
    work = job.work(rows=rows, records=records, copied=copied, left_out=left_out)
    with pytest.raises(BatchAttemptsExhaustedError):
        job.driver.write(0, work)
    assert job.kafka.committed == []
    assert job.store.committed == []


def test_an_empty_batch_has_no_transaction(job: Job) -> None:
    """A16: nothing is committed in Kafka, and the row takes the batch id."""
    job.driver.write(0, job.work())
    report = job.driver.write(1, job.work(rows=0, records=0))
    assert (report.row_count, report.record_count, report.record_bytes, report.prepared) == (0, 0, 0, "")
    assert len(job.kafka.committed) == 1
    assert (job.row().batch_id, job.row().status, job.row().prepared_transaction_state) == (1, "done", "0:0")
    work = job.work()
    job.driver.write(2, work)
    assert work.tickets[0].producer == ProducerIdAndEpoch(0, 1)


def test_a_batch_that_outlives_the_transaction_timeout_is_not_decided() -> None:
    """A17, B1: what Kafka would abort is not decided; the error says how to make it fit, and which limit it was."""
    job = Job()
    job.kafka.timeout_ms, job.kafka.own_timeout = 60_000, True
    job.driver.recover()
    limit = r"transaction\.timeout\.ms=60000 of kafka=\{\.\.\.\} .*maxOffsetsPerTrigger.*, raise it \(to at most"

    def take_long(step: Step) -> None:
        if step is Step.PRODUCE:
            job.clock.now += 59.5

    job.on_step = take_long
    with pytest.raises(TransactionExpiredError, match=limit):
        job.driver.write(0, job.work())
    assert job.store.committed == []
    assert len(job.kafka.aborted) == 1


def test_no_transaction_begins_with_an_exhausted_epoch(job: Job) -> None:
    """B10: EndTxn would rotate the producer id, and the row's pair would match nothing."""
    job.driver.write(0, job.work())
    job.kafka.broker.know(FakeTransaction(0, 32_764, state="Empty"))
    again = job.restarted()
    works = [again.work() for _ in range(3)]
    for batch_id, work in enumerate(works, start=1):
        again.driver.write(batch_id, work)
    assert [work.tickets[0].producer for work in works] == [
        ProducerIdAndEpoch(0, 32_765),
        ProducerIdAndEpoch(1, 0),
        ProducerIdAndEpoch(1, 1),
    ]


def test_a_gap_in_a_run_is_the_job_s_doing(job: Job) -> None:
    """A22, A23: this driver has written batch 0, so batch 1 was finished without the sink. No log is read for that."""
    job.driver.write(0, job.work())
    with halts(HaltCause.NOT_HANDED_OVER, match="your function did not call the sink for batch 1"):
        job.driver.write(2, job.work())
    assert job.kafka.queries == []


def test_batches_without_rows_are_no_gap() -> None:
    """A22: only those between are asked for, and only where some are missing."""
    asked: list[range] = []

    def skipped_batches(missing: range) -> RunRecord:
        asked.append(missing)
        return RunRecord(empty=frozenset(missing))

    job = Job(skipped_batches=skipped_batches)
    job.driver.recover()
    for batch_id in (1, 2, 5):
        job.driver.write(batch_id, job.work())
    assert asked == [range(1), range(3, 5)]
    assert job.row().batch_id == 5


def test_a_stopping_query_does_not_try_again(job: Job) -> None:
    """A14: both sides are restored, and the error passes."""
    job.stopping = True
    work = job.work(fail=[RuntimeError("Job cancelled")])
    with pytest.raises(RuntimeError, match="cancelled"):
        job.driver.write(0, work)
    assert len(work.tickets) == 1
    assert len(job.kafka.aborted) == 1


def test_a_database_that_restarts_is_waited_for(job: Job) -> None:
    """C11: the way back after a failure outlasts a failover."""
    claim, failures = job.store.claim, [1, 2]

    def unreachable(**arguments: Any) -> StateRow:
        if failures:
            failures.pop()
            raise DatabaseUnreachableError(operation="claim", detail="the database system is starting up")
        return claim(**arguments)

    job.store.claim = unreachable  # type: ignore[method-assign]
    assert job.driver.write(0, job.work(fail=[RuntimeError("lost")])).attempts == 2


def test_a_database_that_restarts_between_batches_is_waited_for(job: Job) -> None:
    """C11: a query does not end because nothing was under way when its connection broke."""
    job.driver.write(0, job.work())
    generation, check = job.row().generation, job.store.check_generation

    def broken(transactional_id: str, generation: int) -> StateRow:
        job.store.check_generation = check  # type: ignore[method-assign]
        raise StateStoreError(operation="read", detail="server closed the connection unexpectedly")

    job.store.check_generation = broken  # type: ignore[method-assign]
    assert job.driver.write(1, job.work()).attempts == 1
    assert (job.row().batch_id, job.row().generation) == (1, generation + 1)
    assert len(job.kafka.committed) == 2


@pytest.mark.parametrize("decided", [False, True])
def test_a_database_that_stays_away_ends_the_query_with_the_right_error(job: Job, *, decided: bool) -> None:
    """D3: before the decision the first error, after it InDoubtError."""

    def unreachable(**_: Any) -> StateRow:
        raise DatabaseUnreachableError(operation="claim", detail="no route to host")

    def go_away(step: Step) -> None:
        if step is Step.DECIDE:
            job.kafka.lose_answer_of.append("end")
            job.store.claim = unreachable  # type: ignore[method-assign]

    if decided:
        job.on_step = go_away
        with pytest.raises(InDoubtError, match="no route to host"):
            job.driver.write(0, job.work())
        return
    job.store.claim = unreachable  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="an executor was lost"):
        job.driver.write(0, job.work(fail=[RuntimeError("an executor was lost")]))


REFUSED = ConstraintError(table="t", constraint="c", column="", sqlstate="23514", detail="violates check")
TOO_LARGE = RecordTooLargeError(topic="t", partition=0, row_key="1", record_bytes=9, limit="at most 8")


def test_the_next_attempt_comes_without_the_bad_rows(job: Job) -> None:
    """The failed attempt is aborted on both sides first, and nothing of the search stays in the database."""
    work = job.work(fail_copy=[REFUSED], searches=[2])
    report = job.driver.write(0, work)
    assert work.log == ["produce", "copy", "close", "search", "produce", "copy", "close"]
    assert (report.attempts, report.bad_rows) == (2, 2)
    assert [statement for statement, _ in job.store.committed] == ["copy", "decide"]
    assert len({ticket.producer for ticket in work.tickets}) == 2
    lines = job.store.read_history("orders", last=1)
    assert lines[0].figures["bad_rows"] == 2


@pytest.mark.parametrize("transaction_version", [1, 2])
@pytest.mark.parametrize("found_by", ["fail", "fail_copy"])
def test_batches_with_bad_rows_are_no_claims(job: Job, found_by: str, transaction_version: int) -> None:
    """Seven of them look like one job that runs, and not like two that fight."""
    job.kafka.broker.configure(transaction_version=transaction_version)
    generation, actions = job.row().generation, job.store.read_actions("orders", last=9)
    for batch_id in range(7):
        work = job.work(**{found_by: [REFUSED]}, searches=[1])
        assert job.driver.write(batch_id, work).bad_rows == 1
        first, second = (ticket.producer for ticket in work.tickets)
        # No task of the first attempt that is late can write into the transaction of the second.
        assert second.epoch > first.epoch
    assert (job.row().generation, job.store.read_actions("orders", last=9)) == (generation, actions)


def test_bad_rows_are_not_looked_for_without_end(job: Job) -> None:
    work = job.work(fail_copy=[REFUSED] * 20, searches=[1] * 20)
    with pytest.raises(ConstraintError):
        job.driver.write(0, work)
    assert work.log.count("search") == 8


def test_a_resend_that_meets_a_bad_row_fails(job: Job) -> None:
    """The topic takes less than it did: a person has to say what becomes of the batch that the database has."""
    first = job.work(dead_letters=1)

    def fail(step: Step) -> None:
        if step is Step.DECIDE:
            job.kafka.time_out()
            first.fail.append(TOO_LARGE)

    job.on_step = fail
    with pytest.raises(RecordTooLargeError):
        job.driver.write(0, first)
    assert "search" not in first.log
    assert job.row().status == "owed"


@pytest.mark.parametrize("decided", [False, True])
def test_a_login_that_is_refused_ends_the_query_at_once(
    job: Job, *, decided: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """B25: neither recovery nor the next attempt would be let in, so nothing is waited for, and no line repeated."""
    refused = AuthorizationError(api="SaslAuthenticate", code=58, name="SASL_AUTHENTICATION_FAILED", detail="refused")

    def refuse(_: str) -> None:
        raise refused

    def shut_out(step: Step) -> None:
        if step is (Step.DECIDE if decided else Step.BEGIN):
            job.kafka.before = refuse

    job.on_step = shut_out
    began_s = job.clock.now_s()
    with pytest.raises(InDoubtError if decided else AuthorizationError, match="refused"):
        job.driver.write(0, job.work(fail=[] if decided else [refused]))
    assert job.clock.now_s() == began_s
    assert "failed; retrying" not in caplog.text


def test_a_replay_is_skipped_and_its_plan_still_runs(job: Job) -> None:
    """A1, D2: nothing is written twice, and stateful operators advance."""
    job.driver.write(0, job.work())
    work = job.work()
    report = job.driver.write(0, work)
    assert (report.placement, report.attempts, report.row_count, report.record_bytes) == (Placement.SKIP, 0, 0, 0)
    assert report.prepared == "0:0"
    assert work.log == ["recall", "reread"]
    assert len(job.kafka.committed) == 1


@pytest.mark.parametrize(
    ("first", "second"),
    [({}, {"digest": "e" * 32}), ({}, {"rows": 0, "records": 0}), ({"rows": 0, "records": 0}, {})],
    ids=["others", "none", "some behind none"],
)
def test_another_batch_under_the_same_id_is_not_skipped(
    job: Job, first: dict[str, Any], second: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """A7, D9: a checkpoint that was set back plans the batch anew, with rows that no side has.

    Where accept_replay was left on, the same happens to another batch, and that one halts.
    """
    job.driver.write(0, job.work(**first))
    with halts(HaltCause.REPLAY_DIFFERS):
        job.driver.write(0, job.work(**second))
    accepting = job.restarted(accept_replay=0)
    assert accepting.driver.write(0, accepting.work(**first)).placement is Placement.SKIP
    assert "accept_replay" not in caplog.text
    assert accepting.driver.write(0, accepting.work(**second)).placement is Placement.SKIP
    assert "orders: accept_replay=0 leaves out batch 0 as it is now" in caplog.text
    assert accepting.driver.write(1, accepting.work(**first)).placement is Placement.RUN
    with halts(HaltCause.REPLAY_DIFFERS) as halted:
        accepting.driver.write(1, accepting.work(**second))
    assert "start the job once with DualWriteSink(…, accept_replay=1)" in str(halted.value)


def test_a_dropped_batch_is_skipped_whatever_spark_has_under_its_id(job: Job) -> None:
    """A person has given its Kafka half up, mostly because the replay is another batch."""
    job.on_step = lambda step: job.kafka.time_out() if step is Step.DECIDE else None
    with halts(HaltCause.RESEND_DIFFERS):
        job.driver.write(0, _changing(job.work()))
    row = job.row()
    job.store.drop_batch(ID, row.generation, row.settled)
    restarted = job.restarted()
    assert restarted.driver.write(0, restarted.work(digest="f" * 32)).placement is Placement.SKIP


def test_a_resend_that_is_another_batch_halts(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    """A7: the digest tells that Spark replays something else; a person decides."""
    job.on_step = lambda step: job.kafka.time_out() if step is Step.DECIDE else None
    with halts(HaltCause.RESEND_DIFFERS) as halted:
        job.driver.write(0, _changing(job.work()))
    assert any("--accept-replay" in remedy for remedy in halted.value.remedies)
    assert any("--drop" in remedy for remedy in halted.value.remedies)
    assert job.row().status == "owed"
    assert job.kafka.committed == []
    accepting = job.restarted(accept_replay=0)
    assert accepting.driver.write(0, accepting.work(digest="e" * 32)).placement is Placement.RESEND
    assert "orders: accept_replay=0 sends batch 0 to Kafka as it is now" in caplog.text
    assert job.row().status == "done"


@pytest.mark.parametrize(("batch_id", "told"), [(0, True), (1, False)])
def test_a_first_batch_that_differs_may_be_of_a_full_refresh(job: Job, batch_id: int, told: bool) -> None:
    """A28: both sides have batch 0 alone, so its number does not tell a refresh from a replay."""
    for batch in range(batch_id + 1):
        job.driver.write(batch, job.work())
    refreshed = job.restarted()
    with halts(HaltCause.REPLAY_DIFFERS) as halted:
        refreshed.driver.write(batch_id, refreshed.work(digest="e" * 32))
    assert ("write everything from the source again" in str(halted.value)) is told


def test_a_checkpoint_that_was_set_back_is_refused_with_adopt_too(job: Job) -> None:
    """D8, D9: the option is meant for one start. Left on, it must not let an older checkpoint write batches again."""
    job.driver.write(0, job.work())
    job.driver.write(1, job.work())
    adopting = job.restarted(adopt=True)
    with halts(HaltCause.BATCHES_RESTARTED):
        adopting.driver.write(0, adopting.work())
    assert job.row().batch_id == 1


def _changing(work: FakeWork) -> FakeWork:
    original = work.produce

    def changed(ticket: TransactionTicket, open_decision: Callable[[], Any]) -> Results:
        work.digest = "e" * 32 if ticket.kafka_only else "d" * 32
        return original(ticket, open_decision)

    work.produce = changed  # type: ignore[method-assign]
    return work


class Run(RunOfQuery):
    def __init__(self, job: Job, run_id: str) -> None:
        super().__init__(RunIds("query", run_id))
        self._job = job

    def is_stopping(self) -> bool:
        return self._job.stopping

    def skipped_batches(self, missing: range) -> RunRecord:
        return self._job.skipped_batches(missing)


class Job(SidesInMemory):
    def __init__(
        self,
        *,
        sides: Job | None = None,
        adopt: bool = False,
        accept_replay: int | None = None,
        skipped_batches: Callable[[range], RunRecord] = lambda _: NOTHING_SHOWN,
    ) -> None:
        super().__init__()
        if sides is not None:
            self.kafka, self.store = sides.kafka, sides.store
        self.steps: list[Step] = []
        self.on_step: Callable[[Step], None] = lambda _: None
        self.stopping = False
        self.skipped_batches = skipped_batches
        self.driver = BatchDriver(
            Sides(self.recovery(adopt=adopt, topics=(PARTITION.topic,)), self.kafka, self.store, self.clock),
            Run(self, "run" if sides is None else "run-2"),
            BatchRules(ID, 3, decision_margin_ms=1_000, restore_deadline_ms=1_000, accept_replay=accept_replay),
            self,
        )

    figures: ClassVar[dict[str, float]] = {}

    def __call__(self, step: Step) -> None:
        self.steps.append(step)
        self.on_step(step)

    def restarted(self, **options: Any) -> Job:
        """The driver of the next run, which has recovered."""
        made = Job(sides=self, **options)
        made.driver.recover()
        return made

    def work(self, **fields: Any) -> FakeWork:
        return FakeWork(self.kafka, **fields)
