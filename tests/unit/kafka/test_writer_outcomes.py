"""What EndTxn's answer, or none, does to a writer; and what a refused record does.

Covers A14 (an interrupt inside a commit), B4 (unknown outcome), B7 (a refused commit is never swallowed).
"""

from __future__ import annotations

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
from spark_2pc_sink.ids import EPOCH_MAX, ProducerIdAndEpoch
from spark_2pc_sink.kafka.coordinator_calls import TransactionDescription, commit_error
from spark_2pc_sink.producer import TransactionalWriter, WriterState
from spark_2pc_sink.reference.coordinator.events import InitProducerId
from spark_2pc_sink.wire.api_versions import Api
from tests.unit.fakes.cluster import FakeCluster
from tests.unit.fakes.coordinator import TRANSACTIONAL_ID
from tests.unit.fakes.wire import answer
from tests.unit.kafka.support import ROWS, in_transaction, unknown, writer_on


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


@pytest.mark.parametrize("fenced", [False, True], ids=["released", "KAFKA-20785"])
class TestWhyACommitWasRefused:
    """KAFKA-20785: a time-out and another writer have the same answer, and the coordinator is asked which it was."""

    def test_a_time_out(self, fake: FakeCluster, fenced: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        fake.configure(fences_late_commits=fenced)
        with writer_on(fake) as writer:
            in_transaction(writer)
            writer.flush()
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
            in_transaction(writer)
            writer.flush()
            for _ in range(1 + retried):
                fake.ask(InitProducerId(transactional_id=TRANSACTIONAL_ID))
            text = "another writer has taken over" if retried else "another client has ended the transaction"
            with pytest.raises(FencedError, match=f"{text}.*Kafka shows"):
                writer.commit_transaction()
            assert writer.state is WriterState.FATAL

    def test_a_coordinator_that_does_not_tell(self, fake: FakeCluster, fenced: bool) -> None:
        with writer_on(fake) as writer:
            in_transaction(writer)
            writer.flush()
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


def test_an_interrupted_commit_may_have_happened(
    two_phase: FakeCluster, writer: TransactionalWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A14: stopped inside EndTxn, the outcome is unknown, as after a time-out."""
    in_transaction(writer)

    def interrupt(*_arguments: object, **_keywords: object) -> None:
        raise KeyboardInterrupt

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

    def interrupt(*_arguments: object, **_keywords: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(writer._partitioner, "split_call", interrupt)
    with pytest.raises(KeyboardInterrupt):
        writer.append(ROWS)
    assert writer.state is WriterState.MUST_ABORT


def test_closing_twice_is_fine_and_ends_no_transaction(two_phase: FakeCluster, writer: TransactionalWriter) -> None:
    in_transaction(writer)
    writer.close()
    writer.close()
    assert two_phase.of(Api.END_TXN) == []
