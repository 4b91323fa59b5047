"""Java's producer in Arrow: every state, every call, and what the coordinator hears.

Covers B3 (keep before recovery), B4 (unknown outcome), B7 (a refused commit is never swallowed), B10 (epochs used up),
B12, B16 (empty transactions), B21, B23 (send after prepare, prepare without 2PC), B25 (nothing after a fatal error).
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from spark_2pc_sink.clock import steady_ms
from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import (
    AbortableError,
    AuthorizationError,
    DualWriteError,
    FencedError,
    KafkaError,
    LocalProtocolError,
)
from spark_2pc_sink.ids import EPOCH_MAX, TIMEOUT_NEVER_MS, PreparedTxnState, ProducerIdAndEpoch
from spark_2pc_sink.kafka.coordinator_calls import TransactionDescription, commit_error
from spark_2pc_sink.producer import RULES, Operation, TransactionalWriter, WriterState
from spark_2pc_sink.reference.coordinator.events import InitProducerId
from spark_2pc_sink.reference.coordinator.states import Profile
from spark_2pc_sink.wire.api_versions import Api
from tests.unit.fakes.cluster import FakeCluster, fake_cluster
from tests.unit.fakes.coordinator import TRANSACTIONAL_ID, FakeTransaction
from tests.unit.fakes.wire import after, answer
from tests.unit.kafka.support import CALL, REACH, ROWS, T0, in_transaction, observable, unknown, writer_on

ALLOWED = {(rule.state, rule.operation) for rule in RULES}
ILLEGAL = [pair for pair in itertools.product(WriterState, Operation) if pair not in ALLOWED]


@pytest.mark.parametrize(("state", "operation"), ILLEGAL, ids=lambda part: part.value)
def test_an_illegal_call_raises_and_nothing_moves(
    two_phase: FakeCluster, writer: TransactionalWriter, state: WriterState, operation: Operation
) -> None:
    """KIP-939: 'calling other methods, e.g. .send, in that mode would result in IllegalStateException' (B23, B25)."""
    REACH[state](writer, two_phase)
    assert writer.state is state
    before = observable(writer, two_phase)
    with pytest.raises(LocalProtocolError) as caught:
        CALL[operation](writer)
    assert caught.value.state == state.value
    assert "close" in caught.value.rule
    assert observable(writer, two_phase) == before


@pytest.mark.parametrize(
    "rule",
    [rule for rule in RULES if rule.operation is not Operation.COMPLETE],
    ids=lambda rule: f"{rule.state.value}: {rule.operation.value}",
)
def test_a_legal_call_leads_where_the_table_says(
    two_phase: FakeCluster, writer: TransactionalWriter, rule: Any
) -> None:
    REACH[rule.state](writer, two_phase)
    CALL[rule.operation](writer)
    # Nothing is ongoing in the fake cluster unless a test says so, so init with keep finds nothing.
    keeping = rule.operation is Operation.INIT_KEEPING
    assert writer.state is (WriterState.KEPT_NOTHING if keeping else rule.done)


# --- the table of states ---------------------------------------------------------------------------------------


def test_prepared_and_kept_allow_only_the_end_of_the_transaction() -> None:
    """KIP-939: 'a mode where only .commitTransaction, .abortTransaction, or .completeTransaction could be called'."""
    ends = {Operation.COMMIT, Operation.ABORT, Operation.COMPLETE, Operation.CLOSE}
    for state in (WriterState.PREPARED, WriterState.KEPT):
        assert {operation for allowed, operation in ALLOWED if allowed is state} == ends


# --- transactions -------------------------------------------------------------------------------------------------


def test_committed_transactions_follow_each_other_with_the_pairs_of_end_txn(
    two_phase: FakeCluster, writer: TransactionalWriter
) -> None:
    """KIP-890: EndTxn v5 answers the pair of the next transaction; InitProducerId is not called again."""
    writer.init_transactions()
    pairs = []
    for _ in range(3):
        writer.begin_transaction()
        pairs.append(writer.producer)
        writer.append(ROWS)
        writer.commit_transaction()
    assert pairs == [ProducerIdAndEpoch(7, epoch) for epoch in range(3)]
    assert two_phase.partitions[T0].values == 3
    assert len(two_phase.of(Api.INIT_PRODUCER_ID)) == 1
    assert [request.body.producer_epoch for request in two_phase.of(Api.END_TXN)] == [0, 1, 2]


def test_commit_waits_for_what_was_appended(two_phase: FakeCluster, writer: TransactionalWriter) -> None:
    """B22: a record that the broker refused cannot be committed around."""
    in_transaction(writer)
    two_phase.script(Api.PRODUCE, answer(Code.INVALID_TXN_STATE))
    with pytest.raises(AbortableError):
        writer.commit_transaction()
    assert writer.state is WriterState.MUST_ABORT
    assert two_phase.of(Api.END_TXN) == []
    writer.abort_transaction()
    assert [request.body.committed for request in two_phase.of(Api.END_TXN)] == [False]


@pytest.mark.parametrize("end", [Operation.COMMIT, Operation.ABORT])
def test_a_transaction_without_records_is_not_sent(
    two_phase: FakeCluster, writer: TransactionalWriter, end: Operation
) -> None:
    """A16: the coordinator never heard of it, and would answer INVALID_TXN_STATE to a commit."""
    writer.init_transactions()
    writer.begin_transaction()
    writer.append(ROWS.slice(0, 0))
    assert writer.flush() == {}
    CALL[end](writer)
    assert writer.state is WriterState.READY
    assert two_phase.of(Api.END_TXN) == []


@pytest.mark.parametrize("transaction_version", [0, 1])
def test_below_transaction_version_2(transaction_version: int) -> None:
    """Partitions are added first, every transaction has a pair of its own, and abort is InitProducerId."""
    with fake_cluster(transaction_version=transaction_version) as fake, writer_on(fake) as writer:
        writer.init_transactions()
        writer.begin_transaction()
        writer.append(ROWS)
        writer.append(ROWS)
        writer.commit_transaction()
        assert fake.added == {T0}
        assert len(fake.of(Api.ADD_PARTITIONS_TO_TXN)) == 1
        first = writer.producer
        writer.begin_transaction()
        assert writer.producer != first
        writer.append(ROWS)
        assert [request.body.v3_and_below_producer_epoch for request in fake.of(Api.ADD_PARTITIONS_TO_TXN)] == [0, 1]
        inits = len(fake.of(Api.INIT_PRODUCER_ID))
        writer.abort_transaction()
        # The coordinator answers CONCURRENT_TRANSACTIONS first, while it aborts.
        assert len(fake.of(Api.INIT_PRODUCER_ID)) == inits + 2
        assert [request.version for request in fake.of(Api.END_TXN)] == [4]
        writer.begin_transaction()
        assert len(fake.of(Api.INIT_PRODUCER_ID)) == inits + 2


# --- prepare and complete -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("same", [True, False])
def test_complete_compares_what_was_prepared(two_phase: FakeCluster, writer: TransactionalWriter, same: bool) -> None:
    """KIP-939, completeTransaction: 'compare the currently prepared transaction state and the state passed'."""
    in_transaction(writer)
    state = writer.prepare_transaction()
    assert str(state) == "7:0"
    assert two_phase.partitions[T0].values == 1
    writer.complete_transaction(state if same else PreparedTxnState("7:1"))
    assert writer.state is WriterState.READY
    assert [request.body.committed for request in two_phase.of(Api.END_TXN)] == [same]


def test_what_was_prepared_without_records_names_no_other_transaction(
    two_phase: FakeCluster, writer: TransactionalWriter
) -> None:
    """A database that remembers it would else decide for the next one, which nobody has decided."""
    writer.init_transactions()
    writer.begin_transaction()
    remembered = writer.prepare_transaction()
    writer.complete_transaction(remembered)
    writer.begin_transaction()
    writer.append(ROWS)
    assert writer.prepare_transaction() != remembered


def test_prepare_without_two_phase_commit_is_refused(fake: FakeCluster) -> None:
    """KIP-939: 'If the 2PC is not enabled, we return the INVALID_TXN_STATE error' (B23)."""
    with writer_on(fake) as writer:
        in_transaction(writer)
        before = observable(writer, fake)
        with pytest.raises(LocalProtocolError, match="INVALID_TXN_STATE"):
            writer.prepare_transaction()
        assert observable(writer, fake) == before
        writer.commit_transaction()


def test_two_phase_commit_that_is_not_granted_is_an_error(fake: FakeCluster) -> None:
    """KIP-939: clients 'would receive TRANSACTIONAL_ID_AUTHORIZATION_FAILED'; an older broker has no such version."""
    with writer_on(fake, two_phase_commit=True) as writer:
        with pytest.raises(KafkaError, match=r"no version with two-phase commit.*UNSUPPORTED_VERSION"):
            writer.init_transactions()
        assert fake.of(Api.INIT_PRODUCER_ID) == []
    fake.versions[Api.INIT_PRODUCER_ID] = (0, 6)
    with writer_on(fake, two_phase_commit=True) as writer:
        with pytest.raises(AuthorizationError, match="TRANSACTIONAL_ID_AUTHORIZATION_FAILED"):
            writer.init_transactions()
        assert writer.state is WriterState.FATAL


#: Of a transaction 7:4: the coordinator's profile, resume, the options of the writer and of the transaction, the epoch
#: that ends it.
KEPT = {
    "KIP-939": (Profile.KEEP_PREPARED, False, True, TIMEOUT_NEVER_MS, 5),
    "kept unchanged": (Profile.KEEP_UNCHANGED, False, True, TIMEOUT_NEVER_MS, 4),
    "resumed, with a time-out": (Profile.KEEP_PREPARED, True, True, 60_000, 4),
    "resumed, without two-phase commit": (Profile.KEEP_UNCHANGED, True, False, 60_000, 4),
    "resumed, kept unchanged": (Profile.KEEP_UNCHANGED, True, True, 60_000, 4),
    "resumed, as released": (Profile.AS_RELEASED, True, False, 60_000, 4),
}


@pytest.mark.parametrize("same", [True, False])
@pytest.mark.parametrize(("profile", "resume", "asks", "timeout_ms", "epoch"), KEPT.values(), ids=KEPT)
def test_a_kept_transaction_is_ended_by_what_the_database_remembers(
    two_phase: FakeCluster, profile: Profile, resume: bool, asks: bool, timeout_ms: int, epoch: int, same: bool
) -> None:
    """KIP-939: the pair that InitProducerId answered ends it, and fences every older holder (B12).

    apache/kafka#22704 keeps it unchanged, refuses that to a client without two-phase commit, and aborts one with a
    time-out. In resume mode EndTxn has the pair of the transaction itself, since InitProducerId before it would abort
    it. Who prepared it can learn the answered pair by repeating its EndTxn, so that one is not used afterwards.
    """
    if profile is Profile.AS_RELEASED:
        two_phase.versions[Api.INIT_PRODUCER_ID] = (0, 5)
    two_phase.configure(profile=profile)
    two_phase.know(FakeTransaction(7, 4, partitions=(T0,), timeout_ms=timeout_ms))
    with writer_on(two_phase, resume=resume, two_phase_commit=asks) as writer:
        writer.init_transactions(keep_prepared_txn=True)
        assert (writer.state, writer.producer) == (WriterState.KEPT, ProducerIdAndEpoch(7, epoch))
        writer.complete_transaction(PreparedTxnState("7:4" if same else "7:3"))
        (request,) = two_phase.of(Api.END_TXN)
        assert (request.body.producer_epoch, request.body.committed) == (epoch, same)
        assert two_phase.id_state == ("CompleteCommit" if same else "CompleteAbort")
        writer.begin_transaction()
        assert writer.producer == ProducerIdAndEpoch(7, 6)


def test_with_nothing_kept_complete_does_nothing(two_phase: FakeCluster, writer: TransactionalWriter) -> None:
    writer.init_transactions(keep_prepared_txn=True)
    asked = len(two_phase.received)
    writer.complete_transaction(PreparedTxnState("7:4"))
    assert writer.state is WriterState.READY
    assert len(two_phase.received) == asked


def test_keeping_is_refused_where_the_broker_cannot(fake: FakeCluster) -> None:
    """B3: init without the flag would abort what was to be kept."""
    with writer_on(fake) as writer:
        with pytest.raises(KafkaError, match="UNSUPPORTED_VERSION"):
            writer.init_transactions(keep_prepared_txn=True)
        assert writer.state is WriterState.UNINITIALISED
        assert fake.of(Api.INIT_PRODUCER_ID) == []


def test_resume_mode_waits_for_an_outcome_that_is_being_written(fake: FakeCluster) -> None:
    fake.know(FakeTransaction(7, 4, "PrepareCommit"))
    finish = after(lambda: fake.know(FakeTransaction(7, 4, "CompleteCommit")))
    with writer_on(fake, resume=True) as writer:
        fake.script(Api.DESCRIBE_TRANSACTIONS, answer(Code.NONE), answer(Code.NONE), finish)
        writer.init_transactions(keep_prepared_txn=True)
        assert writer.state is WriterState.KEPT_NOTHING
        assert writer.producer == ProducerIdAndEpoch(7, 5)


@pytest.mark.parametrize("commit", [True, False])
def test_an_unknown_outcome_is_settled_by_the_same_call(
    two_phase: FakeCluster, writer: TransactionalWriter, commit: bool
) -> None:
    """B4: the javadoc of commitTransaction, 'it is safe to retry'; the opposite call is refused."""
    unknown(writer, two_phase, commit=commit)
    other = writer.abort_transaction if commit else writer.commit_transaction
    with pytest.raises(LocalProtocolError):
        other()
    writer.commit_transaction() if commit else writer.abort_transaction()
    assert writer.state is WriterState.READY
    assert {request.body.committed for request in two_phase.of(Api.END_TXN)} == {commit}


@pytest.mark.parametrize(
    ("code", "error", "state"),
    [
        (Code.INVALID_TXN_STATE, KafkaError, WriterState.FATAL),
        (Code.PRODUCER_FENCED, FencedError, WriterState.FATAL),
        (Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, AuthorizationError, WriterState.FATAL),
        (Code.TRANSACTION_ABORTABLE, AbortableError, WriterState.MUST_ABORT),
    ],
    ids=lambda part: getattr(part, "name", None),
)
def test_a_refused_commit_is_an_error(
    two_phase: FakeCluster, writer: TransactionalWriter, code: Code, error: type[DualWriteError], state: WriterState
) -> None:
    """B7: INVALID_TXN_STATE after a commit means that the broker aborted it; success must not be reported."""
    in_transaction(writer)
    two_phase.script(Api.END_TXN, answer(code))
    with pytest.raises(error) as caught:
        writer.commit_transaction()
    assert type(caught.value) is error
    assert writer.state is state


def flushed(writer: TransactionalWriter) -> None:
    in_transaction(writer)
    writer.flush()


@pytest.mark.parametrize("fenced", [False, True], ids=["released", "KAFKA-20785"])
class TestWhyACommitWasRefused:
    """KAFKA-20785: a time-out and another writer have the same answer, and the coordinator is asked which it was."""

    def test_a_time_out(self, fake: FakeCluster, fenced: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        fake.configure(fences_late_commits=fenced)
        with writer_on(fake) as writer:
            flushed(writer)
            fake.now_ms += 1_000_000
            fake.time_out()
            began_ms = steady_ms()
            monkeypatch.setattr("spark_2pc_sink.producer.steady_ms", lambda: began_ms + 1_000_000)
            with pytest.raises(KafkaError, match=r"after its time-out of \d+ ms") as caught:
                writer.commit_transaction()
            assert writer.state is WriterState.FATAL
        assert type(caught.value) is KafkaError
        assert caught.value.code == (Code.PRODUCER_FENCED if fenced else Code.INVALID_TXN_STATE)

    @pytest.mark.parametrize("retried", [False, True])
    def test_another_writer(self, fake: FakeCluster, fenced: bool, retried: bool) -> None:
        """Also between its InitProducerId, which is answered CONCURRENT_TRANSACTIONS, and the same again."""
        fake.configure(fences_late_commits=fenced)
        with writer_on(fake) as writer:
            flushed(writer)
            for _ in range(1 + retried):
                fake.ask(InitProducerId(transactional_id=TRANSACTIONAL_ID))
            text = "another writer has taken over" if retried else "another client has ended the transaction"
            with pytest.raises(FencedError, match=f"{text}.*Kafka shows"):
                writer.commit_transaction()
            assert writer.state is WriterState.FATAL

    def test_a_coordinator_that_does_not_tell(self, fake: FakeCluster, fenced: bool) -> None:
        with writer_on(fake) as writer:
            flushed(writer)
            fake.script(Api.END_TXN, answer(Code.PRODUCER_FENCED if fenced else Code.INVALID_TXN_STATE))
            fake.script(Api.DESCRIBE_TRANSACTIONS, answer(Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED))
            with pytest.raises(KafkaError, match="has timed out, or another writer") as caught:
                writer.commit_transaction()
        assert type(caught.value) is (FencedError if fenced else KafkaError)


def test_a_refusal_of_the_last_epoch_is_told_too() -> None:
    """The coordinator's abort has replaced the producer id."""
    last = ProducerIdAndEpoch(7, EPOCH_MAX)
    shown = TransactionDescription("CompleteAbort", ProducerIdAndEpoch(8, 0), 1_000)
    error = commit_error(Code.PRODUCER_FENCED, last, shown, open_ms=2_000)
    assert (type(error), "time-out of 1000 ms" in str(error)) == (KafkaError, True)


def interrupt(*_arguments: object, **_keywords: object) -> None:
    raise KeyboardInterrupt


def test_an_interrupted_commit_may_have_happened(
    two_phase: FakeCluster, writer: TransactionalWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A14: stopped inside EndTxn, the outcome is unknown, as after a time-out."""
    in_transaction(writer)
    monkeypatch.setattr(writer._client, "end", interrupt)
    with pytest.raises(KeyboardInterrupt):
        writer.commit_transaction()
    monkeypatch.undo()
    assert writer.state is WriterState.COMMITTING
    writer.commit_transaction()


def test_an_interrupted_append_loses_the_transaction(
    two_phase: FakeCluster, writer: TransactionalWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_transaction(writer)
    monkeypatch.setattr(writer._partitioner, "split_call", interrupt)
    with pytest.raises(KeyboardInterrupt):
        writer.append(ROWS)
    assert writer.state is WriterState.MUST_ABORT


def test_closing_twice_is_fine_and_ends_no_transaction(two_phase: FakeCluster, writer: TransactionalWriter) -> None:
    in_transaction(writer)
    writer.close()
    writer.close()
    assert two_phase.of(Api.END_TXN) == []
