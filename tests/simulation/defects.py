"""Defects in the driver's code and around it: tasks, the state store, the coordinator and partition leaders.

A defect is made where the driver and recovery meet Kafka (`SimKafka`), the store or a public function, wherever its
effect can be had there; the others patch a step of the driver or of recovery by its name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

from jdbc_state.model import DECIDE
from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import BatchRetryError, CommitUnknownError, HaltCause, OutcomeUnknownError
from spark_2pc_sink.ids import NO_TRANSACTION, TIMEOUT_NEVER_MS, ProducerIdAndEpoch
from spark_2pc_sink.kafka.coordinator_calls import InitializedProducer
from spark_2pc_sink.kafka.transaction_client import EndTxnAnswer
from spark_2pc_sink.recipe.kept_records import WrittenRecords
from spark_2pc_sink.recipe.placement import Placement
from spark_2pc_sink.recipe.resolve import Halt, Resolution, RowStatus, RowView, Verdict
from spark_2pc_sink.recovery import diagnosis
from spark_2pc_sink.recovery.diagnosis import LostCommits
from spark_2pc_sink.recovery.recovery import Recovery
from spark_2pc_sink.reference.coordinator import init_producer_id
from spark_2pc_sink.reference.log.producer_state import ProducerStates, VerificationGuard
from spark_2pc_sink.sink.driver import batch_driver, batch_placement
from spark_2pc_sink.sink.driver.batch_driver import BatchDriver
from spark_2pc_sink.sink.driver.batch_values import Attempt, Claim, Decided, Done, Produced
from tests.simulation import faults
from tests.simulation.broker import SimBroker, SimKafka
from tests.simulation.drivers import SimWork
from tests.simulation.explore import Mutants, calling, returning
from tests.unit.fakes import coordinator, memory_store

MUTANTS: Final = Mutants("tv2")
_LOSSY: Final = ("tv2-async",)
_OUTPUTS: Final = ("tv2-outputs", "tv0-outputs")
_ALL_VERSIONS: Final = ("tv2", "tv0")
TWO_DRIVERS: Final = (faults.SECOND_DRIVER, faults.SWITCH)


# --- the order of steps ------------------------------------------------------------------------------------------


@MUTANTS.of("EndTxn before COMMIT", (BatchDriver, "_decide"))
def _end_before_commit(original: Any, self: Any, produced: Produced) -> Any:
    if produced.counts.record_count:
        self._kafka.end(produced.attempt.ticket.producer, commit=True)
    return original(self, produced)


@MUTANTS.of("on_decide runs for a resend", (BatchDriver, "_decide"))
def _decide_with_a_resend(original: Any, self: Any, produced: Produced) -> Any:
    attempt = produced.attempt
    if attempt.ticket.kafka_only:
        self._rules.on_decide(attempt.open_decision(), produced.deciding())
    return original(self, produced)


@MUTANTS.of("done noted before EndTxn", (BatchDriver, "_complete"))
def _note_before_end(original: Any, self: Any, decided: Decided) -> Any:
    if decided.has_records:
        bumped = str(decided.producer.bumped())
        row = self._store.mark_done(self._transactional_id, self._claimed.generation, bumped)
        self._claim = replace(self._claimed, row=row)
    # The note that comes after EndTxn is a repetition of this one, which succeeds.
    return original(self, decided)


@MUTANTS.of("abort after an unknown COMMIT", (BatchDriver, "_restore"))
def _abort_after_unknown_commit(original: Any, self: Any, error: Exception, attempt: Attempt | None = None) -> None:
    if isinstance(error, CommitUnknownError) and attempt is not None and attempt.in_doubt:
        self._kafka.end(attempt.ticket.producer, commit=False)
        _trust_the_row(self)
    else:
        original(self, error, attempt)


@MUTANTS.of("unknown COMMIT settled by a plain read", (BatchDriver, "_restore"))
def _unknown_commit_read(original: Any, self: Any, error: Exception, attempt: Attempt | None = None) -> None:
    if not isinstance(error, CommitUnknownError):
        original(self, error, attempt)
        return
    row = self._store.read(self._transactional_id)
    in_doubt = attempt is not None and attempt.in_doubt
    prepared = str(attempt.ticket.producer) if attempt is not None and in_doubt else None
    if row.status == RowStatus.DECIDED and row.prepared_transaction_state == prepared:
        original(self, error, attempt)
    else:
        _trust_the_row(self, self._claimed.row)


def _trust_the_row(driver: Any, row: Any = None) -> None:
    """Go on without a claim, with a producer that InitProducerId gives."""
    row = driver._store.read(driver._transactional_id) if row is None else row
    initialized = driver._kafka.usable_producer()
    driver._claim = Claim(row, initialized, initialized.producer)


@MUTANTS.of("any answer to EndTxn taken for success", (SimKafka, "end"))
def _any_answer_is_success(original: Any, self: Any, producer: ProducerIdAndEpoch, *, commit: bool) -> Any:
    return replace(original(self, producer, commit=commit), code=Code.NONE)


@MUTANTS.of("no answer to EndTxn taken for success", (SimKafka, "end"))
def _no_answer_is_success(original: Any, self: Any, producer: ProducerIdAndEpoch, *, commit: bool) -> Any:
    try:
        return original(self, producer, commit=commit)
    except OutcomeUnknownError:
        return EndTxnAnswer(0, "NONE", None)


@MUTANTS.of("abort after EndTxn(commit) without an answer", (SimKafka, "end"))
def _abort_after_no_answer(original: Any, self: Any, producer: ProducerIdAndEpoch, *, commit: bool) -> Any:
    try:
        return original(self, producer, commit=commit)
    except OutcomeUnknownError:
        original(self, producer, commit=False)
        raise


@MUTANTS.of("one pair for two transactions below version 2", (SimKafka, "end"), profiles=("tv0", "tv1"))
def _answers_the_same_pair(original: Any, self: Any, producer: ProducerIdAndEpoch, *, commit: bool) -> EndTxnAnswer:
    answer: EndTxnAnswer = original(self, producer, commit=commit)
    return replace(answer, producer=answer.producer or producer)


@MUTANTS.of("an empty batch commits a transaction", (BatchDriver, "_take_empty"))
def _commit_an_empty_transaction(original: Any, self: Any, produced: Produced) -> Any:
    answer = self._kafka.end(produced.attempt.ticket.producer, commit=True)
    if answer.code != Code.NONE:
        raise BatchRetryError(reason=answer.name)
    return original(self, produced)


MUTANTS.add(
    "rows without records are taken for none",
    (Produced, "is_empty", lambda _original: property(lambda self: not self.counts.record_count)),
    profiles=_OUTPUTS,
)


@MUTANTS.of("rows alone, and then their row", (BatchDriver, "_decide"), profiles=_OUTPUTS)
def _rows_then_their_row(original: Any, self: Any, produced: Produced) -> Any:
    if produced.counts.record_count:
        return original(self, produced)
    produced.results.copy_into(produced.attempt.open_decision())
    row = self._claimed.row
    # The store commits what is decided: here that the batch before is still the last one.
    before = replace(produced.decision(row), row_count=row.row_count)
    decided = produced.attempt.commit(produced, replace(before, batch_id=-1 if row.batch_id is None else row.batch_id))
    self._take_empty(produced)
    return decided


@MUTANTS.of("resend without the owed state's decision", (BatchDriver, "_run"))
def _resend_undecided(original: Any, self: Any, attempt: Attempt, batch_id: int, begun_s: float) -> Any:
    if not attempt.ticket.kafka_only:
        return original(self, attempt, batch_id, begun_s)
    # Of this driver only: another one may run meanwhile.
    self._decide, self._complete = _skip_the_decision, partial(_end_and_drop, self)
    try:
        return original(self, attempt, batch_id, begun_s)
    finally:
        del self._decide, self._complete


def _skip_the_decision(produced: Produced) -> Decided:
    assert produced.attempt.ticket.kafka_only
    written = WrittenRecords(produced.batch_id, {}, {})
    return Decided(produced.attempt.ticket.producer, written, produced.attempt.outcome, has_records=True)


def _end_and_drop(self: Any, decided: Decided) -> Done:
    answer = self._kafka.end(decided.producer, commit=True)
    row = self._store.drop_batch(self._transactional_id, self._claimed.generation, str(answer.producer))
    return Done(row, answer.producer)


MUTANTS.add("resend without digest check", (batch_driver, "check_resend", returning(None)), profiles=("tv2-drift",))
MUTANTS.add("a batch of the same id is skipped unseen", (batch_driver, "check_skip", returning(None)))


# --- recovery ----------------------------------------------------------------------------------------------------


@MUTANTS.of("claim after reading Kafka", (Recovery, "run"), kinds=TWO_DRIVERS)
def _look_before_the_claim(original: Any, self: Any, **arguments: Any) -> Any:
    seen = [self.diagnosis.view_kafka()]
    look = self.diagnosis.view_kafka
    self.diagnosis.view_kafka = lambda: seen.pop() if seen else look()
    try:
        return original(self, **arguments)
    finally:
        del self.diagnosis.view_kafka


@MUTANTS.of("no InitProducerId at the end of recovery", (SimKafka, "usable_producer"))
def _takes_the_pair_that_it_is_shown(original: Any, self: Any) -> Any:
    described = self.describe()
    if described.state in ("Unknown", "Ongoing") or described.producer.exhausted:
        return original(self)
    timeout_ms = described.timeout_ms
    return InitializedProducer(described.producer, NO_TRANSACTION, timeout_ms == TIMEOUT_NEVER_MS, timeout_ms)


@MUTANTS.of("InitProducerId before the look", (Recovery, "run"))
def _init_first(original: Any, self: Any, **arguments: Any) -> Any:
    self.kafka.usable_producer()
    return original(self, **arguments)


def _verdict_replaced(name: str, verdict: Verdict, by: Verdict | Halt, **more: Any) -> None:
    """A mutant of `resolve`, with one verdict for another."""

    @MUTANTS.of(name, (diagnosis, "resolve"), **more)
    def _resolve(original: Any, row: Any, kafka: Any, **said: Any) -> Resolution | Halt:
        found: Resolution | Halt = original(row, kafka, **said)
        if isinstance(found, Halt) or found.verdict is not verdict:
            return found
        return by if isinstance(by, Halt) else Resolution(by, found.reason)


_NOT_OWED: Final = "no owed state: an aborted decision is noted as done"
_UNASKED: Final = Halt(HaltCause.OUTCOME_LOST, "the log was not asked")
_COMMITS: Final = "no log rule: unknown outcomes taken for commits"
_ABORTS: Final = "no log rule: unknown outcomes taken for aborts"
_UNDER_WAY: Final = {"kinds": (faults.LOSE_REPLY, faults.SLOW_MARKERS)}
_BOTH: Final = {"profiles": _ALL_VERSIONS}
_verdict_replaced("a decided open transaction is aborted", Verdict.COMMIT, Verdict.ABORT, **_BOTH)
_verdict_replaced(_NOT_OWED, Verdict.MARK_OWED, Verdict.MARK_DONE)
_verdict_replaced("a committed decision is noted as owed", Verdict.MARK_DONE, Verdict.MARK_OWED)
_verdict_replaced(_COMMITS, Verdict.ASK_THE_LOG, Verdict.MARK_DONE, **_BOTH)
_verdict_replaced(_ABORTS, Verdict.ASK_THE_LOG, Verdict.MARK_OWED, **_BOTH)
_verdict_replaced("no log rule: halts", Verdict.ASK_THE_LOG, _UNASKED, **_BOTH)
_verdict_replaced("an end that is under way is taken for an abort", Verdict.WAIT, Verdict.MARK_OWED, **_UNDER_WAY)


@MUTANTS.of("an undecided open transaction is committed", (Recovery, "_abort"))
def _commits_what_is_open(_original: Any, self: Any, _row: Any, kafka: Any) -> bool:
    return bool(self.kafka.end(kafka.producer, commit=True).code == Code.NONE)


@MUTANTS.of("the old pair ends a kept transaction", (SimKafka, "init_producer_id"), profiles=("tv2-2pc-keep",))
def _old_pair_after_keep(original: Any, self: Any, *, keep_prepared: bool = False) -> InitializedProducer:
    found: InitializedProducer = original(self, keep_prepared=keep_prepared)
    kept = found.ongoing.producer
    return found if kept is None or not keep_prepared else replace(found, producer=kept)


MUTANTS.add("the first recovery leaves the row fresh", (RowView, "fresh", returning(None)))


@MUTANTS.of("a superseded driver claims again", (Recovery, "run"))
def _claims_again(original: Any, self: Any, *, query_id: Any, run_id: Any, expected_generation: Any = None) -> Any:
    assert expected_generation is None or expected_generation > 0
    return original(self, query_id=query_id, run_id=run_id)


# --- where a batch goes ------------------------------------------------------------------------------------------


def _placed(name: str, placement: Placement, *, status: RowStatus, where: Callable[[int, int], bool]) -> None:
    """A mutant of `place_batch`, for rows of this status where the row's batch and the one that comes are so."""

    @MUTANTS.of(name, (batch_placement, "place_batch"))
    def _place(original: Any, **given: Any) -> Placement | Halt:
        unchanged: Placement | Halt = original(**given)
        last: int | None = given["row_batch_id"]
        changed = given["status"] is status and last is not None and where(last, given["batch_id"])
        return placement if changed else unchanged


_DONE: Final = RowStatus.DONE
_OLDER: Final = "a batch that the row has left behind runs again"
_SKIPPED: Final = "replay check off by one: the next batch is skipped"
_placed(_OLDER, Placement.RUN, status=_DONE, where=lambda last, batch: batch < last)
_placed(_SKIPPED, Placement.SKIP, status=_DONE, where=lambda last, batch: batch <= last + 1)
_placed("replay check off by one: a replay runs again", Placement.RUN, status=_DONE, where=int.__eq__)
_placed("an owed batch taken for done", Placement.SKIP, status=RowStatus.OWED, where=int.__eq__)
_placed("an owed batch runs whole again", Placement.RUN, status=RowStatus.OWED, where=int.__eq__)


@MUTANTS.of("a row that went back is taken as it is", (BatchDriver, "_place"), profiles=_LOSSY)
def _takes_the_row_as_it_is(original: Any, self: Any, batch_id: int) -> Any:
    row = self._store.check_generation(self._transactional_id, self._claimed.generation)
    self._claim = replace(self._claimed, row=row)
    return original(self, batch_id)


@MUTANTS.of(
    "commits beside an undecided row overlooked",
    (diagnosis, "resolve"),
    also=((LostCommits, "shows", returning(False)),),
    profiles=_LOSSY,
)
def _overlooks_commits(original: Any, row: Any, kafka: Any, **said: Any) -> Resolution | Halt:
    found: Resolution | Halt = original(row, kafka, **said)
    overlooked = isinstance(found, Halt) and row.status in (RowStatus.NONE, RowStatus.OWED)
    return Resolution(Verdict.NOTHING, found.reason) if overlooked else found


# --- tasks and the table -----------------------------------------------------------------------------------------


@MUTANTS.of("a task retry writes", (SimWork, "run_task_again"), profiles=("tv2-drift",))
def _retry_writes(_original: Any, self: Any, ticket: Any, partition: Any, records: Any) -> int:
    again = self._world.evaluate(self._batch_id)
    records = tuple(record for record in again if record.partition == partition.partition)
    kept = tuple(record for record in self._records if record.partition != partition.partition)
    self._records = (*kept, *records)
    code, offset, _ = self._kafka.broker.produce(ticket.producer, partition, records, 0)
    assert code == Code.NONE
    return int(offset)


@MUTANTS.of("COPY outside the deciding transaction", (SimWork, "_copy"))
def _copy_commits(_original: Any, self: Any, _connection: Any, records: Any) -> None:
    self._world.database.committed.append(("copy", records))
    self._written += records


@MUTANTS.of("rows written while tasks ran are written again", (SimWork, "copy_into"))
def _copy_twice(original: Any, self: Any, connection: Any) -> Any:
    self._written = ()
    return original(self, connection)


# --- the state store ---------------------------------------------------------------------------------------------


@MUTANTS.of("no generation check in the deciding UPDATE", (memory_store.MemoryStateStore, "moved"), kinds=TWO_DRIVERS)
def _any_generation(original: Any, self: Any, move: Any) -> Any:
    any_claim = replace(move, generation=self._rows[move.transactional_id].generation)
    return original(self, any_claim if move.operation == DECIDE else move)


@MUTANTS.of(
    "no generation check anywhere",
    (memory_store.MemoryStateStore, "check_generation"),
    also=((memory_store.MemoryStateStore, "moved", calling(_any_generation)),),
)
def _checks_nothing(_original: Any, self: Any, transactional_id: str, _generation: int) -> Any:
    return self.read(transactional_id)


@MUTANTS.of("no check of the decision before", (memory_store, "fits"), profiles=_LOSSY)
def _any_decision(original: Any, row: Any, move: Any) -> Any:
    return original(row, replace(move, expected=None))


@MUTANTS.of("a claim leaves the generation", (memory_store.MemoryStateStore, "_taken_over"))
def _same_generation(original: Any, self: Any, row: Any, claimant: Any) -> Any:
    taken = original(self, row, claimant)
    return taken if row is None else replace(taken, generation=row.generation)


# --- the coordinator and partition leaders -----------------------------------------------------------------------


@MUTANTS.of("the marker is looked for at one epoch", (SimKafka, "find_marker"))
def _marker_of_the_same_epoch_only(
    original: Any, self: Any, partition: Any, *, epochs: frozenset[int], **others: Any
) -> Any:
    return original(self, partition, epochs=frozenset({min(epochs)}), **others)


@MUTANTS.of("InitProducerId leaves the epoch", (init_producer_id, "following_pair"))
def _does_not_bump(original: Any, state: Any, client: Any) -> Any:
    return original(state, client) if client.epoch < 0 else (client, None)


@MUTANTS.of(
    "leaders take any epoch",
    (ProducerStates, "start_verification"),
    also=(
        (ProducerStates, "check_batch", returning(Code.NONE)),
        (ProducerStates, "duplicate", returning(None)),
    ),
)
def _any_epoch_writes(original: Any, self: Any, *stamp: Any, **facts: Any) -> Any:
    started = original(self, *stamp, **facts)
    return started if isinstance(started, VerificationGuard) else Code.NONE


@MUTANTS.of("a restarted coordinator owes no markers", (coordinator, "finish_loading"))
def _forgets_markers(original: Any, *args: Any, **kwargs: Any) -> Any:
    state, _ = original(*args, **kwargs)
    return state, ()


@MUTANTS.of("the coordinator answers before its record is durable", (SimBroker, "crash"))
def _record_after_the_reply(original: Any, self: Any) -> None:
    self.state_log = self.state_log[: max(1, len(self.state_log) - 1)]
    original(self)
