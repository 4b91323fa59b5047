"""Every remedy with a command, of every halt and refusal: the command line takes it, and the first one is safe."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any, Final

import pytest

from jdbc_state import StateRow, StoreSettings
from jdbc_state.model import claim_refusal, lost_commits_error
from jdbc_state.sessions import Liveness
from jdbc_state.versions import making, migration
from spark_2pc_sink.choices import NO_FACTS, HaltCause, HaltError, Symptom
from spark_2pc_sink.choices import remedies as remedies_of
from spark_2pc_sink.choices.choice import state_command
from spark_2pc_sink.cli import command_parser
from spark_2pc_sink.cli.options import given_options
from spark_2pc_sink.errors import ClaimRefusedError, TakeOverRefusedError
from spark_2pc_sink.ids import (
    ENDING_STATES,
    TIMEOUT_NEVER_MS,
    ProducerIdAndEpoch,
    TopicPartition,
    TransactionState,
)
from spark_2pc_sink.kafka.transaction_queries import OpenTransaction, TransactionDetails
from spark_2pc_sink.options import RecoveryOptions
from spark_2pc_sink.recipe.kept_records import LogsView, WrittenRecords, find_lost_records
from spark_2pc_sink.recipe.lost_batches import CommittedTransaction, FoundCommits, LostBatches
from spark_2pc_sink.recipe.placement import RunRecord, place_batch, place_beyond
from spark_2pc_sink.recipe.resolve import (
    Halt,
    KafkaView,
    OpenTransactionEnd,
    RowStatus,
    RowView,
    apply_operator_choice,
    database_behind,
    resolve,
)
from spark_2pc_sink.recovery import api
from spark_2pc_sink.recovery.diagnosis import ask_the_log, located
from spark_2pc_sink.recovery.recover_command import kafka_connection, sink_flags
from spark_2pc_sink.recovery.recovery import commits_lost_halt
from spark_2pc_sink.recovery.report import RecoveryReport
from spark_2pc_sink.sink.driver.batch_placement import check_resend, check_skip
from spark_2pc_sink.sink.driver.batch_work import Replay
from spark_2pc_sink.transactions.remedies import end_hanging, end_known, with_cluster
from tests.unit.recovery.test_recovery import Sides

OPTIONS = RecoveryOptions.parse(
    transactional_id="orders",
    kafka={
        "bootstrap.servers": "h:9092",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "app",
        "sasl.password": "hidden",
    },
    database="postgresql://app:hidden@h/shop",
    state_schema="ops",
)
ROW = StateRow(
    transactional_id="orders",
    prepared_transaction_state="7:3",
    status="done",
    generation=2,
    query_id="query-1",
    batch_id=4,
    record_count=20,
    digest="0" * 32,
    cluster_id="here",
    kafka_offsets={"orders-0": (5, 24)},
    claimed_at=datetime(2026, 11, 24, tzinfo=timezone.utc),
)
PAIR = ProducerIdAndEpoch(7, 3)
ORDERS = TopicPartition("orders", 0)
SINK: Final = sink_flags(OPTIONS)
SETTINGS: Final = StoreSettings(schema_help=state_command)
#: What only a person knows, and an example of it: docs/command-line.md says what each stands for.
PLACEHOLDERS: Final = {
    "N": "4",
    "FIRST..LAST": "5..6",
    "FILE": "client.properties",
    "URL": "postgresql://h/shop",
    "ROLE": "job",
}
#: Commands that change nothing.
READ_ONLY: Final = ("verify", "status")


def complete(remedies: tuple[str, ...]) -> tuple[str, ...]:
    """Those of a recovery in a test, with the sides of `OPTIONS`."""
    return tuple(re.sub(r"--transactional-id orders .*?--database \S+", lambda _: SINK, remedy) for remedy in remedies)


def kafka_view(state: TransactionState, cluster_id: str = "here") -> KafkaView:
    return KafkaView(state, ProducerIdAndEpoch(7, 9), 2, cluster_id)


def halt_of(found: object) -> Halt:
    assert isinstance(found, Halt)
    return found


def raised_by(call: Callable[[], object]) -> HaltError:
    with pytest.raises(HaltError) as raised:
        call()
    return raised.value


def halts_of_resolve() -> Iterator[Halt]:
    """Each status beside each state of Kafka, of this cluster and of another."""
    for status in RowStatus:
        for state in TransactionState:
            for cluster_id in ("here", "elsewhere"):
                row = RowView(status, cluster_id=cluster_id)
                found = resolve(row, kafka_view(state), adopt=False)
                if isinstance(found, Halt):
                    yield found
    fresh, ongoing = RowView(RowStatus.NONE), kafka_view(TransactionState.ONGOING)
    opened = halt_of(resolve(fresh, ongoing, adopt=True))
    yield opened
    yield located(opened, {ORDERS: 5})
    for state in set(TransactionState) - ENDING_STATES - {TransactionState.ONGOING}:
        yield halt_of(apply_operator_choice(fresh, kafka_view(state), opened, OpenTransactionEnd(4)))


def halts_of_lost_batches() -> Iterator[Halt]:
    transaction = CommittedTransaction(PAIR, 20, {ORDERS: (25, 44)})
    gap = halt_of(place_batch(status=RowStatus.DONE, row_batch_id=4, batch_id=6))
    for found in (FoundCommits(), FoundCommits((transaction,)), FoundCommits((), ("orders-1",))):
        yield LostBatches(first=5, found=found).explain(database_behind())
        yield LostBatches(first=5, found=found, came=6).explain(gap)


def halts_of_lost_records() -> Iterator[Halt]:
    written = WrittenRecords(4, {ORDERS: (5, 24)}, {"orders": "old"})
    for logs in (LogsView(topic_ids={}, ends={}), LogsView(topic_ids={"orders": "new"}, ends={ORDERS: 0})):
        for committed in (True, False):
            yield halt_of(find_lost_records(written, logs, committed=committed))
    sides = Sides()
    for batch_id in (4, None):
        yield halt_of(ask_the_log(sides.kafka, None, {}, sides.recovery().diagnosis._deadline(), batch_id=batch_id))


def halts_of_a_batch() -> Iterator[Halt]:
    for status, row_batch_id, batch_id in (
        (RowStatus.NONE, None, 3),
        (RowStatus.DONE, 4, 6),
        (RowStatus.DONE, 4, 2),
        (RowStatus.DONE, 4, 0),
        (RowStatus.OWED, 4, 6),
        (RowStatus.OWED, None, 6),
    ):
        yield halt_of(place_batch(status=status, row_batch_id=row_batch_id, batch_id=batch_id))
    beyond = halt_of(place_batch(status=RowStatus.DONE, row_batch_id=4, batch_id=6))
    yield halt_of(place_beyond(range(5, 6), RunRecord(frozenset({5}), frozenset()), beyond))


def halts_of_the_driver() -> Iterator[HaltError]:
    other = Replay(20, "1" * 32)
    yield raised_by(lambda: check_resend(ROW, other, accept_replay=None))
    yield raised_by(lambda: check_skip(ROW, other, accept_replay=None))
    with pytest.raises(HaltError) as raised, commits_lost_halt():
        raise lost_commits_error(ROW, "generation 7")
    yield raised.value


def take_over_refused() -> TakeOverRefusedError:
    found = RecoveryReport(transactional_id="orders", settled=False, cause=HaltCause.DATABASE_BEHIND)
    with pytest.raises(TakeOverRefusedError) as raised:
        api._left_alone(found, Liveness(alive=True, detail="pid 1"), ROW, OPTIONS)
    return raised.value


def refusals() -> Iterator[tuple[str, ...]]:
    """Of a claim, of a transaction in doubt, of a driver that lives, and of a batch that is owed."""
    sides = Sides()
    for row in (ROW, replace(ROW, status="decided")):
        for cluster_id, query_id in (("elsewhere", None), ("here", "query-2")):
            refused = claim_refusal(row, cluster_id=cluster_id, query_id=query_id, adopt=False)
            assert refused is not None
            with pytest.raises(ClaimRefusedError) as raised, sides.recovery().explaining():
                raise refused
            yield complete(raised.value.remedies)
    yield remedies_of(Symptom.IN_DOUBT, NO_FACTS, SINK)
    yield take_over_refused().remedies
    sides.decide(sides.start())
    sides.kafka.end(ProducerIdAndEpoch(0, 0), commit=False)
    yield complete(sides.recovery().run(query_id=None, run_id=None).report.remedies)


def ends_of_transactions() -> Iterator[tuple[str, ...]]:
    """Of each state of a transaction, with and without a time-out, of a sink's or another's."""
    for state, timeout_ms, is_sink in itertools.product(
        TransactionState, (60_000, TIMEOUT_NEVER_MS), (True, False, None)
    ):
        yield end_known(TransactionDetails(0, "orders", 7, 3, state.value, timeout_ms, 1, 1, ()), is_sink=is_sink)
    yield end_hanging(OpenTransaction("orders", 0, 7, 3, -1, 5), sink="orders")


HALTS: Final[list[Halt | HaltError]] = [
    *halts_of_resolve(),
    *halts_of_lost_batches(),
    *halts_of_lost_records(),
    *halts_of_a_batch(),
    *halts_of_the_driver(),
]
CLUSTER: Final = [with_cluster(each, kafka_connection(OPTIONS.kafka)) for each in ends_of_transactions()]
ALL: Final = sorted({remedies_of(halt.cause, halt.facts, SINK) for halt in HALTS} | {*refusals(), *CLUSTER})


@pytest.mark.parametrize("remedy", [making(SETTINGS), migration(SETTINGS, role="owner", where="h/shop")])
def test_the_commands_about_tables_are_taken_too(remedy: str) -> None:
    """Whole lines, as those about sinks; a role is for a person to name."""
    (words,) = commands((remedy,))
    filled = [PLACEHOLDERS.get(word, word) for word in words[1:]]
    assert callable(command_parser(filled).parse_args(filled).run)
    assert ("changes nothing" in remedy) == (words[2] == "ddl")


def commands(remedies: tuple[str, ...]) -> list[list[str]]:
    """The words of each command among them, as a shell that knows comments splits them."""
    return [shlex.split(remedy, comments=True) for remedy in remedies if remedy.startswith("spark-2pc ")]


def test_every_cause_is_walked() -> None:
    assert {halt.cause for halt in HALTS} == set(HaltCause)


@pytest.mark.parametrize("remedies", ALL, ids=range(len(ALL)))
def test_each_command_is_one_that_the_command_line_takes(
    remedies: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As printed, but for what only a person knows; and its options do not contradict each other."""
    monkeypatch.setenv("SPARK_2PC_COMMAND_CONFIG", "")
    for words in commands(remedies):
        filled = [PLACEHOLDERS.get(word, word) for word in words[1:]]
        assert not [word for word in filled if re.fullmatch(r"[A-Z][A-Z_.]+", word)], words
        given = command_parser(filled).parse_args(filled)
        assert callable(given.run)
        assert "orders" in (getattr(given, "transactional_id", None), getattr(given, "topic", None))
        assert given.bootstrap_server
        assert given.database or not given.database_required
        if words[1] == "recover":
            options: dict[str, Any] = given_options(given)
            RecoveryOptions.parse(kafka={"bootstrap.servers": "h:9092"}, **options)


@pytest.mark.parametrize("remedies", ALL, ids=range(len(ALL)))
def test_a_remedy_is_a_sentence_or_a_whole_command_that_says_its_change(remedies: tuple[str, ...]) -> None:
    """No command hides in a sentence, where nobody could paste it; and no secret is in one."""
    for shown in remedies:
        command, comment, change = shown.partition("  # ")
        assert "spark-2pc " not in (change if comment else shown)
        assert bool(comment) == command.startswith("spark-2pc ")
        assert not comment or len(change) > len("changes nothing")
        assert "hidden" not in shown


@pytest.mark.parametrize("remedies", ALL, ids=range(len(ALL)))
def test_the_first_remedy_changes_nothing(remedies: tuple[str, ...]) -> None:
    """It is a sentence for a person, or a command that only looks; what looks never stands behind what changes."""
    assert remedies
    changing = [each[1] not in READ_ONLY for each in commands(remedies)]
    assert not remedies[0].startswith("spark-2pc ") or commands(remedies)[0][1] in READ_ONLY
    assert changing == sorted(changing)
    for words, shown in zip(
        commands(remedies), filter(lambda each: each.startswith("spark-2pc "), remedies), strict=True
    ):
        assert ("changes nothing" in shown) == (words[1] in READ_ONLY)


@pytest.mark.parametrize("remedies", ALL, ids=range(len(ALL)))
def test_two_commands_are_not_the_same_with_other_words(remedies: tuple[str, ...]) -> None:
    """What one remedy says is not refused by another: nothing is adopted where a decision would be forgotten."""
    listed = [tuple(words) for words in commands(remedies)]
    assert len(listed) == len(set(listed))
    if any("status in the database" in each for each in remedies):
        assert not any("--adopt" in words for words in listed)
