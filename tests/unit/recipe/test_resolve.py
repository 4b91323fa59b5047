"""Every row of the recovery table, and that no other input exists.

The table is written down here a second time, by hand and in another shape: as predicates in the order in which a
person would check them. Both are then compared over the whole space of inputs.
"""

from __future__ import annotations

import itertools

import pytest

from spark_2pc_sink.errors import HaltCause
from spark_2pc_sink.ids import NO_TRANSACTION, PreparedTxnState, ProducerIdAndEpoch, TransactionState
from spark_2pc_sink.recipe.resolve import (
    Halt,
    KafkaView,
    OpenTransactionEnd,
    Resolution,
    RowStatus,
    RowView,
    Verdict,
    apply_operator_choice,
    is_next,
    may_hide_commits,
    resolve,
)

OWN = ProducerIdAndEpoch(7, 10)
AFTER = ProducerIdAndEpoch(7, 11)
LATER = ProducerIdAndEpoch(7, 14)
OTHER = ProducerIdAndEpoch(8, 0)
PAIRS = (None, OWN, AFTER, LATER, OTHER)
SETTLED = ("", "7:10", "7:11", "7:14")
ENDING = {TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT, TransactionState.PREPARE_EPOCH_FENCE}
COMMITTED = {TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT}
ABORTED = {TransactionState.PREPARE_ABORT, TransactionState.COMPLETE_ABORT}
COMPLETE = {TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT}

SPACE = tuple(
    itertools.product(
        RowStatus,
        SETTLED,
        TransactionState,
        PAIRS,
        (0, 1, 2),
        (False, True),
        (False, True),
        (False, True),
        ("here", "elsewhere", None),
    )
)


def decided(row: RowView, kafka: KafkaView, *, adopt: bool = False, nothing_lost: bool = False) -> Verdict | HaltCause:
    """The verdict, or why there is none."""
    resolution = resolve(row, kafka, adopt=adopt, nothing_lost=nothing_lost)
    return resolution.cause if isinstance(resolution, Halt) else resolution.verdict


def expected(row: RowView, kafka: KafkaView, *, adopt: bool, nothing_lost: bool) -> Verdict | HaltCause:  # noqa: C901, PLR0911 - a table in words
    outcome = AFTER if kafka.transaction_version == 2 else OWN
    if row.cluster_id == "elsewhere":
        return HaltCause.OTHER_CLUSTER
    if row.status is RowStatus.DECIDED:
        if kafka.state is TransactionState.ONGOING and kafka.producer == OWN:
            return Verdict.COMMIT
        if kafka.producer == outcome and kafka.state in COMMITTED:
            return Verdict.MARK_DONE if kafka.state in COMPLETE else Verdict.WAIT
        if kafka.producer == outcome and kafka.state in ABORTED and kafka.transaction_version == 2:
            return Verdict.MARK_OWED if kafka.state in COMPLETE else Verdict.WAIT
        beyond = kafka.state in COMMITTED and kafka.transaction_version == 2 and kafka.producer not in {OWN, AFTER}
        behind = beyond and not kafka.keeps_prepared and not nothing_lost
        return HaltCause.DATABASE_BEHIND if behind else Verdict.ASK_THE_LOG
    if row.status is RowStatus.DONE:
        if kafka.state is TransactionState.ONGOING:
            return Verdict.COMMIT if kafka.producer == OWN else Verdict.ABORT
        known = kafka.producer in {outcome, row.settled.producer}
        if kafka.state in COMMITTED and not known and not nothing_lost:
            return HaltCause.DATABASE_BEHIND
        return Verdict.WAIT if kafka.state in ENDING else Verdict.NOTHING
    never_recovered = row.status is RowStatus.NONE and str(row.settled) == ""
    if never_recovered and not adopt and kafka.state not in {TransactionState.UNKNOWN, TransactionState.EMPTY}:
        return HaltCause.ID_IN_USE
    if kafka.state is TransactionState.ONGOING:
        return HaltCause.OPEN_TRANSACTION if never_recovered else Verdict.ABORT
    own = row.status is RowStatus.OWED and kafka.producer == outcome
    if kafka.state in COMMITTED and not own and not never_recovered and not nothing_lost:
        return HaltCause.DATABASE_BEHIND
    return Verdict.WAIT if kafka.state in ENDING else Verdict.NOTHING


def test_the_whole_space_of_inputs_has_the_verdict_of_the_table() -> None:
    """Recovery table; covers B3, B6, B7, B9, B10, B28, C5, D6: nothing is answered by chance."""
    seen = set()
    for status, settled, state, pair, version, adopt, nothing_lost, keeps, cluster in SPACE:
        row = RowView(status, PreparedTxnState.of(OWN), PreparedTxnState(settled), cluster)
        kafka = KafkaView(state, pair, version, "here", keeps)
        resolution = resolve(row, kafka, adopt=adopt, nothing_lost=nothing_lost)
        assert resolution.reason
        answer = resolution.cause if isinstance(resolution, Halt) else resolution.verdict
        assert answer is expected(row, kafka, adopt=adopt, nothing_lost=nothing_lost), (row, kafka, adopt, nothing_lost)
        seen.add(answer)
    halts = {HaltCause.OTHER_CLUSTER, HaltCause.ID_IN_USE, HaltCause.DATABASE_BEHIND, HaltCause.OPEN_TRANSACTION}
    assert seen == {*Verdict} - {Verdict.TAKE_OPEN} | halts


def test_a_sink_that_has_only_seen_empty_batches_knows_no_pair_of_its_own() -> None:
    """A16: the row is done and names no transaction; a commit in Kafka is then somebody else's."""
    row = RowView(RowStatus.DONE, settled=PreparedTxnState("7:10"), cluster_id="here")
    assert decided(row, KafkaView(TransactionState.EMPTY, OWN, 2, "here")) is Verdict.NOTHING
    assert decided(row, KafkaView(TransactionState.ONGOING, OWN, 2, "here")) is Verdict.ABORT
    assert decided(row, KafkaView(TransactionState.COMPLETE_COMMIT, AFTER, 2, "here")) is HaltCause.DATABASE_BEHIND


@pytest.mark.parametrize(
    ("status", "settled", "state", "pair", "hidden"),
    [
        ("done", "7:11", "CompleteCommit", AFTER, False),
        ("done", "7:14", "Empty", LATER, False),
        ("done", "7:14", "Ongoing", LATER, False),
        ("done", "7:11", "Empty", LATER, True),
        ("done", "7:11", "Ongoing", LATER, True),
        ("done", "7:11", "Unknown", None, True),
        ("owed", "", "Empty", LATER, True),
        ("none", "7:14", "Ongoing", LATER, False),
        ("none", "7:11", "Empty", LATER, True),
        ("none", "", "Empty", LATER, True),
        ("none", "", "Unknown", None, False),
        ("done", "7:11", "PrepareAbort", LATER, False),
    ],
)
def test_what_the_coordinator_no_longer_shows_may_be_in_the_logs(
    status: str, settled: str, state: str, pair: ProducerIdAndEpoch | None, hidden: bool
) -> None:
    """C5: it shows the last transaction of an id. Another pair than those that the row knows was taken since."""
    row = RowView(RowStatus(status), PreparedTxnState("7:10"), PreparedTxnState(settled), "here")
    kafka = KafkaView(TransactionState(state), pair, 2, "here")
    resolution = resolve(row, kafka)
    verdict = resolution if isinstance(resolution, Resolution) else Resolution(Verdict.NOTHING, "a new row")
    assert may_hide_commits(row, kafka, verdict) is hidden


@pytest.mark.parametrize("verdict", list(Verdict))
def test_what_a_log_tells_of_a_commit_says_nothing_of_later_ones(verdict: Verdict) -> None:
    """C5: an abort that it tells of makes the row owed, and that is looked at in its turn."""
    row = RowView(RowStatus.DECIDED, PreparedTxnState("7:10"), NO_TRANSACTION, "here")
    kafka = KafkaView(TransactionState.EMPTY, LATER, 2, "here")
    assert may_hide_commits(row, kafka, Resolution(verdict, "", from_log=True)) is (verdict is Verdict.MARK_DONE)


@pytest.mark.parametrize(
    ("state", "seen", "answered", "alone"),
    [
        ("Unknown", None, ProducerIdAndEpoch(7, 0), True),
        ("Unknown", None, ProducerIdAndEpoch(7, 1), False),
        ("Empty", ProducerIdAndEpoch(7, 4), ProducerIdAndEpoch(7, 5), True),
        ("CompleteCommit", ProducerIdAndEpoch(7, 4), ProducerIdAndEpoch(7, 6), False),
        ("CompleteAbort", ProducerIdAndEpoch(7, 32766), ProducerIdAndEpoch(8, 0), True),
        ("CompleteAbort", ProducerIdAndEpoch(7, 32766), ProducerIdAndEpoch(8, 1), False),
        ("Ongoing", ProducerIdAndEpoch(7, 4), ProducerIdAndEpoch(7, 6), True),
        ("PrepareAbort", ProducerIdAndEpoch(7, 4), ProducerIdAndEpoch(7, 6), True),
    ],
)
def test_a_pair_tells_whether_somebody_was_there_since_the_look(
    state: str, seen: ProducerIdAndEpoch | None, answered: ProducerIdAndEpoch, alone: bool
) -> None:
    """D9: InitProducerId counts one epoch on, or begins a new producer id (KIP-360)."""
    assert is_next(KafkaView(TransactionState(state), seen, 2, "here"), answered) is alone


FRESH = RowView(RowStatus.NONE, cluster_id="here")
COMMIT, ABORT = OpenTransactionEnd(3), OpenTransactionEnd(None)


@pytest.mark.parametrize(
    ("choice", "state", "found"),
    [
        (None, TransactionState.ONGOING, HaltCause.OPEN_TRANSACTION),
        (COMMIT, TransactionState.ONGOING, Verdict.TAKE_OPEN),
        (ABORT, TransactionState.ONGOING, Verdict.ABORT),
        (COMMIT, TransactionState.COMPLETE_ABORT, HaltCause.OPEN_TRANSACTION),
        (COMMIT, TransactionState.COMPLETE_COMMIT, HaltCause.OPEN_TRANSACTION),
        (COMMIT, TransactionState.EMPTY, HaltCause.OPEN_TRANSACTION),
        (ABORT, TransactionState.COMPLETE_COMMIT, HaltCause.OPEN_TRANSACTION),
        (ABORT, TransactionState.COMPLETE_ABORT, Verdict.NOTHING),
        (COMMIT, TransactionState.PREPARE_ABORT, Verdict.WAIT),
        (ABORT, TransactionState.PREPARE_COMMIT, Verdict.WAIT),
    ],
)
def test_an_open_transaction_ends_as_a_person_says(
    choice: OpenTransactionEnd | None, state: TransactionState, found: object
) -> None:
    """C14: adopt alone ends nothing that the database may have decided.

    It may have ended otherwise meanwhile, by a time-out or an operator: to go on as if the word had been carried out
    would be wrong.
    """
    kafka = KafkaView(state, OWN, 2, "here")
    resolution = apply_operator_choice(FRESH, kafka, resolve(FRESH, kafka, adopt=True), choice)
    assert (resolution.cause if isinstance(resolution, Halt) else resolution.verdict) is found
    if isinstance(resolution, Halt) and choice is not None:
        assert f"could end with {choice}: Kafka shows {state.value} 7:10" in resolution.reason


def test_a_row_that_tells_by_itself_is_not_overruled() -> None:
    """Safe to run twice: where the row names a decision, or a recovery has finished with it, the word does nothing."""
    known = [
        RowView(status, PreparedTxnState("7:10"), PreparedTxnState("7:9"), "here")
        for status in RowStatus
        if status is not RowStatus.NONE
    ] + [RowView(RowStatus.NONE, settled=PreparedTxnState("7:9"), cluster_id="here")]
    for row, state, choice in itertools.product(known, TransactionState, (COMMIT, ABORT)):
        kafka = KafkaView(state, OWN, 2, "here")
        found = resolve(row, kafka, adopt=True)
        assert apply_operator_choice(row, kafka, found, choice) is found


def test_views_are_readable() -> None:
    row = RowView(RowStatus.DECIDED, PreparedTxnState("7:10"), PreparedTxnState("7:9"))
    assert (str(row), str(RowView(RowStatus.NONE))) == ("decided 7:10, settled at 7:9", "none")
