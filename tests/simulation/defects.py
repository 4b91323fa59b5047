"""Defects in the driver's code and around it: tasks, the state store, the coordinator and partition leaders.

A defect is made where the driver and recovery meet Kafka (`SimKafka`), the store or a public function, wherever its
effect can be had there; the others patch a step of the driver or of recovery by its name.
"""

from __future__ import annotations

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
from spark_2pc_sink.recovery.lost_commits import LostCommits
from spark_2pc_sink.recovery.recovery import Recovery
from spark_2pc_sink.reference.coordinator import init_producer_id
from spark_2pc_sink.reference.log.producer_state import ProducerStates, VerificationGuard
from spark_2pc_sink.sink.driver import batch_driver, batch_placement
from spark_2pc_sink.sink.driver.batch_driver import BatchDriver
from spark_2pc_sink.sink.driver.batch_values import Attempt, Claim, Decided, Done, Produced
from spark_2pc_sink.sink.driver.on_decide import DecidingBatch
from spark_2pc_sink.sink.report import NOTHING_WRITTEN
from tests.simulation import faults
from tests.simulation.broker import SimBroker, SimKafka
from tests.simulation.drivers import SimWork
from tests.simulation.explore import Mutant, Replacement
from tests.unit.fakes import coordinator, memory_store

_LOSSY: Final = ("tv2-async",)
_OUTPUTS: Final = ("tv2-outputs", "tv0-outputs")
_ALL_VERSIONS: Final = ("tv2", "tv0")
TWO_DRIVERS: Final = (faults.SECOND_DRIVER, faults.SWITCH)


def returning(value: Any) -> Replacement:
    """A function that answers the same whatever it is asked."""
    return lambda _original: lambda *_args, **_kwargs: value


# --- the order of steps ------------------------------------------------------------------------------------------


def _end_before_commit(original: Any) -> Any:
    def decide(self: Any, produced: Produced) -> Decided:
        if produced.counts.record_count:
            self._kafka.end(produced.attempt.ticket.producer, commit=True)
        return original(self, produced)  # type: ignore[no-any-return]

    return decide


def _decide_with_a_resend(original: Any) -> Any:
    def decide(self: Any, produced: Produced) -> Decided:
        attempt = produced.attempt
        if attempt.ticket.kafka_only:
            producer = attempt.ticket.producer
            batch = DecidingBatch.of("", produced.batch_id, producer, produced.counts, NOTHING_WRITTEN)
            self._rules.on_decide(attempt.open_decision(), batch)
        return original(self, produced)  # type: ignore[no-any-return]

    return decide


def _note_before_end(original: Any) -> Any:
    def complete(self: Any, decided: Decided) -> Done:
        if decided.has_records:
            bumped = str(decided.producer.bumped())
            row = self._store.mark_done(self._transactional_id, self._claimed.generation, bumped)
            self._claim = replace(self._claimed, row=row)
        # The note that comes after EndTxn is a repetition of this one, which succeeds.
        return original(self, decided)  # type: ignore[no-any-return]

    return complete


def _abort_after_unknown_commit(original: Any) -> Any:
    def restore(self: Any, error: Exception, attempt: Attempt | None = None) -> None:
        if isinstance(error, CommitUnknownError) and attempt is not None and attempt.in_doubt:
            self._kafka.end(attempt.ticket.producer, commit=False)
            _trust_the_row(self)
        else:
            original(self, error, attempt)

    return restore


def _unknown_commit_read(original: Any) -> Any:
    def restore(self: Any, error: Exception, attempt: Attempt | None = None) -> None:
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

    return restore


def _trust_the_row(driver: Any, row: Any = None) -> None:
    """Go on without a claim, with a producer that InitProducerId gives."""
    row = driver._store.read(driver._transactional_id) if row is None else row
    initialized = driver._kafka.usable_producer()
    driver._claim = Claim(row, initialized, initialized.producer)


def _any_answer_is_success(original: Any) -> Any:
    def end(self: Any, producer: ProducerIdAndEpoch, *, commit: bool) -> EndTxnAnswer:
        answer: EndTxnAnswer = original(self, producer, commit=commit)
        return replace(answer, code=Code.NONE)

    return end


def _no_answer_is_success(original: Any) -> Any:
    def end(self: Any, producer: ProducerIdAndEpoch, *, commit: bool) -> EndTxnAnswer:
        try:
            return original(self, producer, commit=commit)  # type: ignore[no-any-return]
        except OutcomeUnknownError:
            return EndTxnAnswer(0, "NONE", None)

    return end


def _abort_after_no_answer(original: Any) -> Any:
    def end(self: Any, producer: ProducerIdAndEpoch, *, commit: bool) -> EndTxnAnswer:
        try:
            return original(self, producer, commit=commit)  # type: ignore[no-any-return]
        except OutcomeUnknownError:
            original(self, producer, commit=False)
            raise

    return end


def _answers_the_same_pair(original: Any) -> Any:
    def end(self: Any, producer: ProducerIdAndEpoch, *, commit: bool) -> EndTxnAnswer:
        answer: EndTxnAnswer = original(self, producer, commit=commit)
        return replace(answer, producer=answer.producer or producer)

    return end


def _commit_an_empty_transaction(original: Any) -> Any:
    def take_empty(self: Any, produced: Produced) -> Done:
        answer = self._kafka.end(produced.attempt.ticket.producer, commit=True)
        if answer.code != Code.NONE:
            raise BatchRetryError(reason=answer.name)
        return original(self, produced)  # type: ignore[no-any-return]

    return take_empty


def _rows_taken_for_none(_original: Any) -> Any:
    return property(lambda self: not self.counts.record_count)


def _rows_then_their_row(original: Any) -> Any:
    def decide(self: Any, produced: Produced) -> Decided:
        if produced.counts.record_count:
            return original(self, produced)  # type: ignore[no-any-return]
        produced.results.copy_into(produced.attempt.open_decision())
        row = self._claimed.row
        # The store commits what is decided: here that the batch before is still the last one.
        before = replace(produced.decision(row), row_count=row.row_count)
        decided = produced.attempt.commit(
            produced, replace(before, batch_id=-1 if row.batch_id is None else row.batch_id)
        )
        self._take_empty(produced)
        return decided

    return decide


def _resend_undecided(original: Any) -> Any:
    def run(self: Any, attempt: Attempt, batch_id: int, begun_s: float) -> Done:
        if not attempt.ticket.kafka_only:
            return original(self, attempt, batch_id, begun_s)  # type: ignore[no-any-return]
        # Of this driver only: another one may run meanwhile.
        self._decide, self._complete = _skip_the_decision, partial(_end_and_drop, self)
        try:
            return original(self, attempt, batch_id, begun_s)  # type: ignore[no-any-return]
        finally:
            del self._decide, self._complete

    return run


def _skip_the_decision(produced: Produced) -> Decided:
    assert produced.attempt.ticket.kafka_only
    written = WrittenRecords(produced.batch_id, {}, {})
    return Decided(produced.attempt.ticket.producer, written, produced.attempt.outcome, has_records=True)


def _end_and_drop(self: Any, decided: Decided) -> Done:
    answer = self._kafka.end(decided.producer, commit=True)
    row = self._store.drop_batch(self._transactional_id, self._claimed.generation, str(answer.producer))
    return Done(row, answer.producer)


# --- recovery ----------------------------------------------------------------------------------------------------


def _look_before_the_claim(original: Any) -> Any:
    def run(self: Any, **arguments: Any) -> Any:
        seen = [self.diagnosis.view_kafka()]
        look = self.diagnosis.view_kafka
        self.diagnosis.view_kafka = lambda: seen.pop() if seen else look()
        try:
            return original(self, **arguments)
        finally:
            del self.diagnosis.view_kafka

    return run


def _takes_the_pair_that_it_is_shown(original: Any) -> Any:
    def usable_producer(self: Any) -> InitializedProducer:
        described = self.describe()
        if described.state in ("Unknown", "Ongoing") or described.producer.exhausted:
            return original(self)  # type: ignore[no-any-return]
        timeout_ms = described.timeout_ms
        return InitializedProducer(described.producer, NO_TRANSACTION, timeout_ms == TIMEOUT_NEVER_MS, timeout_ms)

    return usable_producer


def _init_first(original: Any) -> Any:
    def run(self: Any, **arguments: Any) -> Any:
        self._kafka.usable_producer()
        return original(self, **arguments)

    return run


_UNASKED: Final = Halt(HaltCause.OUTCOME_LOST, "the log was not asked")


def _verdict_replaced(verdict: Verdict, by: Verdict | Halt) -> Replacement:
    """`resolve` with one verdict for another."""

    def replacement(original: Any) -> Any:
        def resolve(row: Any, kafka: Any, **said: Any) -> Resolution | Halt:
            found: Resolution | Halt = original(row, kafka, **said)
            if isinstance(found, Halt) or found.verdict is not verdict:
                return found
            return by if isinstance(by, Halt) else Resolution(by, found.reason)

        return resolve

    return replacement


def _commits_what_is_open(_original: Any) -> Any:
    def abort(self: Any, kafka: Any) -> bool:
        return self._kafka.end(kafka.producer, commit=True).code == Code.NONE  # type: ignore[no-any-return]

    return abort


def _old_pair_after_keep(original: Any) -> Any:
    def init_producer_id(self: Any, *, keep_prepared: bool = False) -> InitializedProducer:
        found: InitializedProducer = original(self, keep_prepared=keep_prepared)
        kept = found.ongoing.producer
        return found if kept is None or not keep_prepared else replace(found, producer=kept)

    return init_producer_id


def _claims_again(original: Any) -> Any:
    def run(self: Any, *, query_id: Any, run_id: Any, expected_generation: Any = None) -> Any:
        assert expected_generation is None or expected_generation > 0
        return original(self, query_id=query_id, run_id=run_id)

    return run


# --- where a batch goes ------------------------------------------------------------------------------------------


def _placed(change: Any) -> Replacement:
    """`place_batch`, changed by a function of (status, row's batch, batch), which answers None for no change."""

    def replacement(original: Any) -> Any:
        def place(*, status: RowStatus, row_batch_id: int | None, batch_id: int) -> Placement | Halt:
            changed = change(status, row_batch_id, batch_id)
            unchanged: Placement | Halt = original(status=status, row_batch_id=row_batch_id, batch_id=batch_id)
            return unchanged if changed is None else changed

        return place

    return replacement


def _next_is_a_replay(status: RowStatus, last: int | None, batch_id: int) -> Placement | None:
    return Placement.SKIP if status is RowStatus.DONE and last is not None and batch_id <= last + 1 else None


def _replay_runs(status: RowStatus, last: int | None, batch_id: int) -> Placement | None:
    return Placement.RUN if status is RowStatus.DONE and batch_id == last else None


def _owed_is_done(status: RowStatus, last: int | None, batch_id: int) -> Placement | None:
    return Placement.SKIP if status is RowStatus.OWED and batch_id == last else None


def _takes_the_row_as_it_is(original: Any) -> Any:
    def place(self: Any, batch_id: int) -> Placement:
        row = self._store.check_generation(self._transactional_id, self._claimed.generation)
        self._claim = replace(self._claimed, row=row)
        return original(self, batch_id)  # type: ignore[no-any-return]

    return place


def _overlooks_commits(original: Any) -> Any:
    def resolve(row: Any, kafka: Any, **said: Any) -> Resolution | Halt:
        found: Resolution | Halt = original(row, kafka, **said)
        overlooked = isinstance(found, Halt) and row.status in (RowStatus.NONE, RowStatus.OWED)
        return Resolution(Verdict.NOTHING, found.reason) if overlooked else found

    return resolve


def _owed_runs_whole(status: RowStatus, last: int | None, batch_id: int) -> Placement | None:
    return Placement.RUN if status is RowStatus.OWED and batch_id == last else None


def _older_runs(status: RowStatus, last: int | None, batch_id: int) -> Placement | None:
    return Placement.RUN if status is RowStatus.DONE and last is not None and batch_id < last else None


DEFECTS: tuple[Mutant, ...] = (
    Mutant("EndTxn before COMMIT", ((BatchDriver, "_decide", _end_before_commit),)),
    Mutant("on_decide runs for a resend", ((BatchDriver, "_decide", _decide_with_a_resend),)),
    Mutant("done noted before EndTxn", ((BatchDriver, "_complete", _note_before_end),)),
    Mutant("abort after an unknown COMMIT", ((BatchDriver, "_restore", _abort_after_unknown_commit),)),
    Mutant("unknown COMMIT settled by a plain read", ((BatchDriver, "_restore", _unknown_commit_read),)),
    Mutant("any answer to EndTxn taken for success", ((SimKafka, "end", _any_answer_is_success),)),
    Mutant("no answer to EndTxn taken for success", ((SimKafka, "end", _no_answer_is_success),)),
    Mutant("abort after EndTxn(commit) without an answer", ((SimKafka, "end", _abort_after_no_answer),)),
    Mutant("an empty batch commits a transaction", ((BatchDriver, "_take_empty", _commit_an_empty_transaction),)),
    Mutant("rows without records are taken for none", ((Produced, "is_empty", _rows_taken_for_none),), _OUTPUTS),
    Mutant("rows alone, and then their row", ((BatchDriver, "_decide", _rows_then_their_row),), _OUTPUTS),
    Mutant(
        "one pair for two transactions below version 2", ((SimKafka, "end", _answers_the_same_pair),), ("tv0", "tv1")
    ),
    Mutant("resend without the owed state's decision", ((BatchDriver, "_run", _resend_undecided),)),
    Mutant("resend without digest check", ((batch_driver, "check_resend", returning(None)),), ("tv2-drift",)),
    Mutant("a batch of the same id is skipped unseen", ((batch_driver, "check_skip", returning(None)),)),
    Mutant(
        "a batch that the row has left behind runs again", ((batch_placement, "place_batch", _placed(_older_runs)),)
    ),
    Mutant("claim after reading Kafka", ((Recovery, "run", _look_before_the_claim),), kinds=TWO_DRIVERS),
    Mutant(
        "no InitProducerId at the end of recovery", ((SimKafka, "usable_producer", _takes_the_pair_that_it_is_shown),)
    ),
    Mutant("InitProducerId before the look", ((Recovery, "run", _init_first),)),
    Mutant(
        "a decided open transaction is aborted",
        ((diagnosis, "resolve", _verdict_replaced(Verdict.COMMIT, Verdict.ABORT)),),
        _ALL_VERSIONS,
    ),
    Mutant("an undecided open transaction is committed", ((Recovery, "_abort", _commits_what_is_open),)),
    Mutant(
        "no owed state: an aborted decision is noted as done",
        ((diagnosis, "resolve", _verdict_replaced(Verdict.MARK_OWED, Verdict.MARK_DONE)),),
    ),
    Mutant(
        "a committed decision is noted as owed",
        ((diagnosis, "resolve", _verdict_replaced(Verdict.MARK_DONE, Verdict.MARK_OWED)),),
    ),
    Mutant(
        "no log rule: unknown outcomes taken for commits",
        ((diagnosis, "resolve", _verdict_replaced(Verdict.ASK_THE_LOG, Verdict.MARK_DONE)),),
        _ALL_VERSIONS,
    ),
    Mutant(
        "no log rule: unknown outcomes taken for aborts",
        ((diagnosis, "resolve", _verdict_replaced(Verdict.ASK_THE_LOG, Verdict.MARK_OWED)),),
        _ALL_VERSIONS,
    ),
    Mutant(
        "no log rule: halts", ((diagnosis, "resolve", _verdict_replaced(Verdict.ASK_THE_LOG, _UNASKED)),), _ALL_VERSIONS
    ),
    Mutant(
        "an end that is under way is taken for an abort",
        ((diagnosis, "resolve", _verdict_replaced(Verdict.WAIT, Verdict.MARK_OWED)),),
        kinds=(faults.LOSE_REPLY, faults.SLOW_MARKERS),
    ),
    Mutant(
        "the old pair ends a kept transaction",
        ((SimKafka, "init_producer_id", _old_pair_after_keep),),
        ("tv2-2pc-keep",),
    ),
    Mutant("the first recovery leaves the row fresh", ((RowView, "fresh", returning(None)),)),
    Mutant(
        "replay check off by one: the next batch is skipped",
        ((batch_placement, "place_batch", _placed(_next_is_a_replay)),),
    ),
    Mutant("replay check off by one: a replay runs again", ((batch_placement, "place_batch", _placed(_replay_runs)),)),
    Mutant("an owed batch taken for done", ((batch_placement, "place_batch", _placed(_owed_is_done)),)),
    Mutant("an owed batch runs whole again", ((batch_placement, "place_batch", _placed(_owed_runs_whole)),)),
    Mutant("a row that went back is taken as it is", ((BatchDriver, "_place", _takes_the_row_as_it_is),), _LOSSY),
    Mutant(
        "commits beside an undecided row overlooked",
        ((diagnosis, "resolve", _overlooks_commits), (LostCommits, "shows", returning(False))),
        _LOSSY,
    ),
    Mutant("a superseded driver claims again", ((Recovery, "run", _claims_again),)),
)


def _retry_writes(_original: Any) -> Any:
    def run_again(self: Any, ticket: Any, partition: Any, records: Any) -> int:
        again = self._world.evaluate(self._batch_id)
        records = tuple(record for record in again if record.partition == partition.partition)
        kept = tuple(record for record in self._records if record.partition != partition.partition)
        self._records = (*kept, *records)
        code, offset, _ = self._kafka.broker.produce(ticket.producer, partition, records, 0)
        assert code == Code.NONE
        return int(offset)

    return run_again


def _copy_commits(_original: Any) -> Any:
    def copy(self: Any, _connection: Any, records: Any) -> None:
        self._world.database.committed.append(("copy", records))
        self._written += records

    return copy


def _copy_twice(original: Any) -> Any:
    def copy_into(self: Any, connection: Any) -> Any:
        self._written = ()
        return original(self, connection)

    return copy_into


def _any_generation(original: Any) -> Any:
    def moved(self: Any, move: Any) -> Any:
        any_claim = replace(move, generation=self._rows[move.transactional_id].generation)
        return original(self, any_claim if move.operation == DECIDE else move)

    return moved


def _any_decision(original: Any) -> Any:
    def fits(row: Any, move: Any) -> bool:
        return original(row, replace(move, expected=None))  # type: ignore[no-any-return]

    return fits


def _checks_nothing(_original: Any) -> Any:
    def check_generation(self: Any, transactional_id: str, _generation: int) -> Any:
        return self.read(transactional_id)

    return check_generation


def _same_generation(original: Any) -> Any:
    def taken_over(self: Any, row: Any, claimant: Any) -> Any:
        taken = original(self, row, claimant)
        return taken if row is None else replace(taken, generation=row.generation)

    return taken_over


def _does_not_bump(original: Any) -> Any:
    def emptied(before: Any, event: Any, now_ms: int, *, pair: Any, last_producer_epoch: int) -> Any:
        known = before.producer_epoch >= 0 and before.producer_id == pair.producer_id
        kept = before.pair if known else pair
        return original(before, event, now_ms, pair=kept, last_producer_epoch=last_producer_epoch)

    return emptied


def _marker_of_the_same_epoch_only(original: Any) -> Any:
    def find(self: Any, partition: Any, *, epochs: frozenset[int], **others: Any) -> Any:
        return original(self, partition, epochs=frozenset({min(epochs)}), **others)

    return find


def _any_epoch_writes(original: Any) -> Any:
    def judge(self: Any, stamp: Any, **facts: Any) -> Any:
        started = original(self, stamp, **facts)
        return started if isinstance(started, VerificationGuard) else Code.NONE

    return judge


def _forgets_markers(original: Any) -> Any:
    def finish(*args: Any, **kwargs: Any) -> Any:
        state, _ = original(*args, **kwargs)
        return state, ()

    return finish


def _record_after_the_reply(original: Any) -> Any:
    def crash(self: Any) -> None:
        self.state_log = self.state_log[: max(1, len(self.state_log) - 1)]
        original(self)

    return crash


DEFECTS_OUTSIDE: tuple[Mutant, ...] = (
    Mutant("a task retry writes", ((SimWork, "run_task_again", _retry_writes),), ("tv2-drift",)),
    Mutant("COPY outside the deciding transaction", ((SimWork, "_copy", _copy_commits),)),
    Mutant("rows written while tasks ran are written again", ((SimWork, "copy_into", _copy_twice),)),
    Mutant(
        "no generation check in the deciding UPDATE",
        ((memory_store.MemoryStateStore, "moved", _any_generation),),
        kinds=TWO_DRIVERS,
    ),
    Mutant("no check of the decision before", ((memory_store, "fits", _any_decision),), ("tv2-async",)),
    Mutant(
        "no generation check anywhere",
        (
            (memory_store.MemoryStateStore, "moved", _any_generation),
            (memory_store.MemoryStateStore, "check_generation", _checks_nothing),
        ),
    ),
    Mutant("a claim leaves the generation", ((memory_store.MemoryStateStore, "_taken_over", _same_generation),)),
    Mutant("the marker is looked for at one epoch", ((SimKafka, "find_marker", _marker_of_the_same_epoch_only),)),
    Mutant("InitProducerId leaves the epoch", ((init_producer_id, "_emptied", _does_not_bump),)),
    Mutant(
        "leaders take any epoch",
        (
            (ProducerStates, "start_verification", _any_epoch_writes),
            (ProducerStates, "check_batch", returning(Code.NONE)),
            (ProducerStates, "duplicate", returning(None)),
        ),
    ),
    Mutant("a restarted coordinator owes no markers", ((coordinator, "finish_loading", _forgets_markers),)),
    Mutant("the coordinator answers before its record is durable", ((SimBroker, "crash", _record_after_the_reply),)),
)
