"""Recovery over an in-memory database and an in-memory coordinator: every verdict carried out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from jdbc_state import Decision, StateRow
from spark_2pc_sink.errors import ConfigurationError, HaltCause, InDoubtError, RemoteProtocolError
from spark_2pc_sink.ids import ProducerIdAndEpoch, TopicPartition
from spark_2pc_sink.kafka.coordinator_calls import TransactionDescription
from spark_2pc_sink.kafka.log_reader import Marker
from spark_2pc_sink.options import OperatorDecision, RecoveryOptions
from spark_2pc_sink.recipe.lost_batches import CommittedTransaction, FoundCommits
from spark_2pc_sink.recipe.resolve import OpenTransactionEnd
from spark_2pc_sink.recovery.recovery import OperatorChoice, Recovery
from spark_2pc_sink.recovery.report import Action
from spark_2pc_sink.reference.coordinator.states import Profile
from tests.harness.halts import halts
from tests.unit.fakes.clock import FakeClock
from tests.unit.fakes.fake_kafka import FakeKafka
from tests.unit.fakes.memory_store import MemoryStateStore

ID = "orders"
QUERY = "query-1"


class Sides:
    """Both sides, and a driver that can die between them."""

    def __init__(self, **settings: object) -> None:
        self.kafka = FakeKafka(**settings)
        self.store = MemoryStateStore()
        self.clock = FakeClock()

    def recovery(
        self,
        *,
        adopt: bool = False,
        accept_loss: str | None = None,
        topics: tuple[str, ...] = (),
        decision: OperatorDecision | None = None,
        batch_id: int | None = None,
        open_transaction: OpenTransactionEnd | None = None,
        settle_deadline_ms: int = 5_000,
    ) -> Recovery:
        options = RecoveryOptions.parse(
            transactional_id=ID,
            kafka={"bootstrap.servers": "unused:9092"},
            database="postgresql://unused/none",
            settle_deadline_ms=settle_deadline_ms,
            adopt=adopt,
            accept_loss=accept_loss,
        )
        return Recovery(
            options,
            kafka=self.kafka,
            store=self.store,
            clock=self.clock,
            topics=topics,
            choice=OperatorChoice(decision, batch_id, open_transaction),
        )

    def start(self) -> ProducerIdAndEpoch:
        return self.recovery().run(query_id=QUERY, run_id="run").initialized.producer

    def decide(
        self, pair: ProducerIdAndEpoch, *, batch_id: int = 0, partitions: Sequence[str] = ("orders-0",)
    ) -> StateRow:
        """Produce with ``pair`` and commit the database's half; then the driver dies."""
        self.kafka.produce(pair, *map(TopicPartition.parse, partitions))
        row = self.row()
        with self.store.deciding(ID, row.generation) as transaction:
            transaction.decide(
                Decision(
                    prepared=str(pair),
                    expected=row.prepared_transaction_state,
                    batch_id=batch_id,
                    row_count=3,
                    record_count=3,
                    digest="0" * 32,
                    kafka_offsets=dict.fromkeys(partitions, (5, 7)),
                    topic_ids=dict(self.kafka.topic_ids),
                )
            )
        return self.row()

    def row(self) -> StateRow:
        row = self.store.read(ID)
        assert row is not None
        return row


def decided(partitions: Sequence[str] = ("orders-0",), **settings: object) -> tuple[Sides, ProducerIdAndEpoch]:
    """A driver that died with its first batch decided, and the pair of the transaction, which is open."""
    sides = Sides(**settings)
    pair = sides.start()
    sides.decide(pair, partitions=partitions)
    return sides, pair


def gone_by(partitions: Sequence[str] = ("orders-0",)) -> tuple[Sides, ProducerIdAndEpoch]:
    """The same, committed since; the coordinator shows a later pair, and the log what `FakeKafka.logs` says."""
    sides, pair = decided(partitions)
    sides.kafka.end(pair, commit=True)
    sides.kafka.init_producer_id()
    return sides, pair


def told(sides: Sides) -> list[tuple[str, int | None]]:
    """What the table of actions says, but for claims, with the batch; the oldest first."""
    lines = sides.store.read_actions(ID, last=100)[::-1]
    return [(line.action, line.batch_id) for line in lines if line.action not in {"claim", "adopt"}]


def test_every_recovery_ends_with_init_producer_id() -> None:
    """B12: only the pair that InitProducerId answered last is used next."""
    sides = Sides()
    first, second = sides.start(), sides.start()
    assert second == first.bumped()
    assert sides.kafka.calls[-1] == "init"


def test_the_claim_comes_before_the_look() -> None:
    """B26: what Kafka said before the claim may be stale."""
    sides = Sides()
    generations = []
    sides.kafka.before = lambda name: generations.append((name, sides.store.read(ID)))
    sides.start()
    looked = [row for name, row in generations if name == "describe"]
    assert all(row is not None and row.generation == 1 for row in looked)


@pytest.mark.parametrize("lost", [False, True])
def test_what_happened_behind_a_look_is_looked_at(lost: bool) -> None:
    """D9: a driver stands still between its look and InitProducerId, while others write and a backup is restored."""
    sides = Sides()
    others = iter([True])

    def before(name: str) -> None:
        if name == "init" and next(others, False):
            sides.kafka.init_producer_id()
            transaction = CommittedTransaction(ProducerIdAndEpoch(0, 0), 3, {TopicPartition("orders", 0): (0, 2)})
            sides.kafka.found = FoundCommits((transaction,) if lost else ())

    sides.kafka.before = before
    if lost:
        with halts(HaltCause.DATABASE_BEHIND, match="Kafka has at least 1 batch"):
            sides.recovery(topics=("orders",)).run(query_id="query-1", run_id="run")
    else:
        sides.recovery(topics=("orders",)).run(query_id="query-1", run_id="run")
    assert sides.kafka.calls[-3:] == ["describe", "describe", "find_commits"] or lost
    assert sides.row().settled == ("" if lost else "0:1")


def test_a_decided_transaction_that_is_still_open_is_committed() -> None:
    """KIP-939, Recovery recipe; B3: nothing is initialised before the decision is read and carried out."""
    sides, pair = decided()
    sides.kafka.calls.clear()
    report = sides.recovery().run(query_id=QUERY, run_id="run-2").report
    assert sides.kafka.committed == [pair]
    assert sides.kafka.calls.index("end") < sides.kafka.calls.index("init")
    assert (sides.row().status, sides.row().settled) == ("done", str(pair.bumped()))
    assert report.settled
    assert [action.kind for action in report.actions] == ["commit"]
    assert str(report.actions[0]).startswith("committed 0:0 in Kafka")


@pytest.mark.parametrize(("marker", "status"), [(Marker.COMMIT, "done"), (Marker.ABORT, "owed")])
def test_the_log_tells_what_the_coordinator_no_longer_shows(marker: Marker, status: str) -> None:
    """B9, B10, B28: the coordinator shows a later pair, the control marker still says how this one ended."""
    sides, pair = decided()
    sides.kafka.end(pair, commit=marker is Marker.COMMIT)
    sides.kafka.init_producer_id()
    sides.start()
    assert sides.row().status == status


@pytest.mark.parametrize(
    ("decision", "status"), [(OperatorDecision.DROP, "done"), (OperatorDecision.ACCEPT_REPLAY, "owed")]
)
def test_an_operator_settles_what_the_log_cannot_tell(decision: OperatorDecision, status: str) -> None:
    """D3, D9: a person's decision is carried out, named in the report and told once, and nothing else is."""
    sides, _ = gone_by()
    sides.kafka.lose_markers()
    with halts(HaltCause.OUTCOME_LOST, match="--batch 0 --drop"):
        sides.recovery(decision=decision).run(query_id=None, run_id=None)
    with pytest.raises(ConfigurationError, match="the batch in doubt, which is 0"):
        sides.recovery(decision=decision, batch_id=1).run(query_id=None, run_id=None)
    assert sides.row().status == "decided"
    report = sides.recovery(decision=decision, batch_id=0).run(query_id=None, run_id=None).report
    assert sides.row().status == status
    assert report.actions[-1].kind == decision.name.lower()
    assert told(sides) == [(decision.name.lower(), 0)]


def test_an_operator_decision_does_not_override_a_transaction_that_can_be_committed() -> None:
    """--drop is about what Kafka lacks: a decided transaction that is still open is committed all the same."""
    sides, pair = decided()
    sides.recovery(decision=OperatorDecision.DROP).run(query_id=None, run_id=None)
    assert sides.kafka.committed == [pair]


@pytest.mark.parametrize("profile", [Profile.KEEP_PREPARED, Profile.KEEP_UNCHANGED])
@pytest.mark.parametrize("began_with", [True, False])
def test_a_decided_transaction_is_committed_although_it_cannot_be_kept(profile: Profile, began_with: bool) -> None:
    """Two-phase commit was granted or withdrawn since. apache/kafka#22704 aborts the one, and refuses the other."""
    sides, pair = decided(profile=profile, two_phase_commit_enable=began_with)
    sides.kafka.broker.configure(two_phase_commit_enable=not began_with)
    sides.start()
    assert (sides.kafka.committed, sides.kafka.aborted) == ([pair], [])
    assert sides.row().status == "done"


def test_a_crash_loop_of_takeovers_commits_once() -> None:
    """B11: each takeover moves the pair on; the last one commits, and only one commit happens."""
    sides, pair = decided(profile=Profile.KEEP_PREPARED, two_phase_commit_enable=True)
    sides.kafka.init_producer_id(keep_prepared=True)
    sides.kafka.init_producer_id(keep_prepared=True)
    sides.start()
    assert sides.kafka.committed == [pair]


def test_an_end_under_way_is_waited_for_and_given_up_at_the_deadline(caplog: pytest.LogCaptureFixture) -> None:
    """B13: PrepareCommit is not interpreted; a coordinator that never finishes leaves the sink in doubt."""
    sides, pair = decided()
    sides.kafka.broker.held = True
    sides.kafka.end(pair, commit=True)

    def finish(name: str) -> None:
        if sides.clock.now > 1 and name == "describe":
            sides.kafka.broker.held = False

    sides.kafka.before = finish
    sides.start()
    assert sides.row().status == "done"

    stuck, pair = decided()
    stuck.kafka.broker.held = True
    stuck.kafka.end(pair, commit=True)
    with pytest.raises(InDoubtError, match="PrepareCommit"):
        stuck.recovery(settle_deadline_ms=60_000).run(query_id=QUERY, run_id="run")
    waiting = [line for line in caplog.messages if "recovery is still waiting, for up to 5" in line][:1]
    assert [f"{ID}: recovery" in line and "Kafka shows PrepareCommit 0:1" in line for line in waiting] == [True]


@pytest.mark.parametrize("operation", ["look", "run"])
def test_a_state_that_only_a_newer_kafka_has_is_named(operation: str) -> None:
    """Nobody knows what it means for the transaction, so nothing is done about it."""
    sides, _ = decided()
    before, sides.kafka.shown = sides.row(), TransactionDescription("Sleeping", sides.kafka.pair, 60_000)
    sides.kafka.calls.clear()
    with pytest.raises(RemoteProtocolError, match="'orders' in state 'Sleeping'"):
        sides.recovery().diagnosis.dry_run() if operation == "look" else sides.start()
    assert sides.kafka.calls == ["refresh", "describe"]
    assert sides.row().status == before.status == "decided"


def test_a_look_changes_nothing() -> None:
    """status and --dry-run never claim."""
    sides = Sides()
    nothing = sides.recovery().diagnosis.dry_run()
    assert (nothing.settled, nothing.known, nothing.age_s) == (True, False, None)
    assert sides.store.read(ID) is None
    pair = sides.start()
    sides.decide(pair)
    before = sides.row()
    report = sides.recovery().diagnosis.dry_run()
    assert (report.settled, report.known) == (False, True)
    assert report.age_s is not None
    assert report.in_doubt_s == pytest.approx(report.age_s, abs=1)
    assert report.actions == (Action("commit", "recovery will commit Kafka transaction 0:0"),)
    assert sides.row() == before
    assert sides.kafka.committed == []
    sides.kafka.end(pair, commit=True)
    sides.kafka.init_producer_id()
    assert sides.recovery().diagnosis.dry_run().actions == (
        Action("note_done", "recovery will note that Kafka has committed it"),
    )


def test_a_commit_that_comes_before_the_abort_is_not_passed_over() -> None:
    """C5: the driver died with EndTxn under way, and a backup was restored that lacks its decision.

    InitProducerId answers the same whether it has aborted the transaction or come after its commit: found by the
    specification (spec/DualWrite.tla, mutant "InitProducerId aborts").
    """
    sides = Sides()
    pair = sides.start()
    backup = sides.row()
    sides.decide(pair)
    sides.store._rows[ID] = replace(backup, generation=sides.row().generation)
    late = [pair]

    def arrive(name: str) -> None:
        if name in ("end", "init") and late:
            sides.kafka.end(late.pop(), commit=True)

    sides.kafka.before = arrive
    with halts(HaltCause.DATABASE_BEHIND):
        sides.start()
    assert sides.row().batch_id is None
