"""The contract of a state store, on PostgreSQL and in memory alike; and the survey of all sinks."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import datetime, timezone
from typing import Any

import pytest
from sqlalchemy import insert, text

from jdbc_state import TRANSITIONS, SqlStateStore, StateRow, StateStore
from jdbc_state.errors import CommitsLostError
from jdbc_state.model import STATUSES, legal_before, status_after
from jdbc_state.survey import UnreadableRow
from spark_2pc_sink import errors
from tests.harness.sql import run_sql
from tests.integration.state.conftest import Make
from tests.integration.state.state_stores import (
    ARGUMENTS,
    CLUSTER,
    FIRST,
    ID,
    QUERY,
    RUN,
    admin,
    attempt,
    call,
    claim,
    decide,
    decide_first,
    reach,
    row_of,
    settings,
    sql_store,
)
from tests.unit.fakes.memory_store import MemoryStateStore

OPERATIONS = ["decide", *ARGUMENTS]


# --- reading ---------------------------------------------------------------------------------------------------------


def test_reading_needs_no_table(unprepared: Make) -> None:
    """D2: `status` on a fresh database says that nothing is known, it does not fail."""
    store = unprepared()
    assert store.read(ID) is None
    assert store.read_all() == []
    with pytest.raises(errors.StateStoreError) as raised:
        claim(store)
    assert (raised.value.sqlstate, raised.value.retriable) == ("42P01", False)


def test_every_row_is_listed_by_its_id(store: StateStore) -> None:
    """A10: two sinks in one table do not touch each other."""
    rows = [reach(store, status, transactional_id) for transactional_id, status in (("b:1", "done"), ("b", "owed"))]
    assert store.read_all() == [rows[1], rows[0]]
    assert store.read("c") is None


@pytest.mark.parametrize("status", ["none", "decided", "done"])
def test_a_row_says_how_old_it_is_and_for_how_long_kafka_has_lacked_its_batch(status: str, store: StateStore) -> None:
    """B27: by the decision; claims come and go while a job fails at each start."""
    reach(store, status)
    row = row_of(store)
    assert 0 <= row.age_s < 5
    assert (row.decided_age_s is None) is (status == "none")
    assert 0 <= (row.decided_age_s or 0) < 5
    assert row.in_doubt_s == (row.decided_age_s if status == "decided" else None)


# --- the claim -------------------------------------------------------------------------------------------------------


def test_the_first_claim_makes_the_row(store: StateStore) -> None:
    row = claim(store)
    assert row == StateRow(
        transactional_id=ID,
        generation=1,
        query_id=QUERY,
        run_id=RUN,
        cluster_id=CLUSTER,
        claimed_at=row.claimed_at,
    )
    again = claim(store, run_id="run-2")
    assert again == replace(row, generation=2, run_id="run-2", claimed_at=again.claimed_at)
    assert again.claimed_at >= row.claimed_at
    assert row_of(store) == again


@pytest.mark.parametrize("status", STATUSES)
def test_an_adopting_query_counts_its_batches_from_none(store: StateStore, status: str) -> None:
    """A8: after a wiped checkpoint batch 0 comes again, and must not be taken for the replay of an old one."""
    row = reach(store, status)
    adopted = claim(store, query_id="query-2", adopt=True)
    taken = replace(row, query_id="query-2", generation=2, claimed_at=adopted.claimed_at, decision=row.decision + 1)
    assert adopted == replace(taken, batch_id=None)


@pytest.mark.parametrize(("status", "after"), [("none", "none"), ("done", "none"), ("owed", "owed")])
def test_adopted_from_another_cluster_a_row_forgets_its_transactions(
    store: StateStore, status: str, after: str
) -> None:
    """D6: producer ids of two clusters collide, so a pair of the other one would name a stranger's transaction."""
    reach(store, status)
    adopted = claim(store, cluster_id="cluster-b", adopt=True)
    assert (adopted.status, adopted.cluster_id) == (after, "cluster-b")
    assert (adopted.prepared_transaction_state, adopted.settled, adopted.kafka_offsets) == ("", "", {})
    assert adopted.topic_ids == {}
    assert adopted.batch_id == (None if status == "none" else 0)


def test_a_batch_in_doubt_in_another_cluster_is_not_adopted(store: StateStore) -> None:
    """D6: which side has the batch can only be settled with the cluster that it was sent to."""
    row = reach(store, "decided")
    with pytest.raises(errors.ClaimRefusedError, match="where a decided batch is not settled"):
        claim(store, cluster_id="cluster-b", adopt=True)
    assert row_of(store) == row


def test_a_claim_can_depend_on_the_claim_before(store: StateStore) -> None:
    """D1: a driver that was overtaken does not overtake in turn."""
    row = claim(store)
    mine = claim(store, expected_generation=row.generation)
    assert mine.generation == 2
    other = claim(store, run_id="run-2", expected_generation=mine.generation)
    with pytest.raises(errors.SupersededError, match="generation 3 of run run-2"):
        claim(store, expected_generation=mine.generation)
    with pytest.raises(errors.SupersededError, match=r"holds generation 2 .* generation 3"):
        store.check_generation(ID, mine.generation)
    # C5: a row that is gone, for instance with a restored backup: that driver is not the one to begin anew.
    with pytest.raises(errors.SupersededError, match="is gone from the state table"):
        claim(store, "gone", expected_generation=1)
    assert row_of(store) == other


def test_a_generation_that_goes_back_is_no_newer_driver(store: StateStore) -> None:
    """C5: generations only grow. One below a claim that was granted shows that the database lost that claim."""
    row = claim(store)
    lost = row.generation + 1
    attempts: dict[str, Callable[[], object]] = {
        "claim": lambda: claim(store, expected_generation=lost),
        "check": lambda: store.check_generation(ID, lost),
        "move": lambda: store.mark_initialized(ID, lost, "5:0"),
        "deciding": lambda: decide(store, replace(row, generation=lost)),
    }
    for act in attempts.values():
        with pytest.raises(CommitsLostError, match="left the state row at generation 2, and the row is now different"):
            act()
    assert row_of(store) == row


def test_a_claim_whose_answer_was_lost_is_repeated(store: StateStore) -> None:
    """C1 for the claim: it was carried out, nobody heard of it, and the same run asks again with what it knows."""
    known = claim(store)
    claim(store, expected_generation=known.generation)
    assert claim(store, expected_generation=known.generation).generation == 3
    claim(store, query_id=None, run_id=None)
    with pytest.raises(errors.SupersededError):
        claim(store, expected_generation=known.generation)
    with pytest.raises(errors.SupersededError):
        claim(store, query_id=None, run_id=None, expected_generation=known.generation)


# --- moves -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("operation", "status"), list(itertools.product(OPERATIONS, STATUSES)))
def test_a_row_moves_by_the_table_and_no_other_way(store: StateStore, operation: str, status: str) -> None:
    """B7, B28: every operation in every status; what is not in TRANSITIONS is refused, and the row untouched."""
    row = reach(store, status)
    if status in legal_before(operation):
        moved = call(store, operation, ID, row.generation)
        assert moved is not None
        assert moved == row_of(store)
        assert moved.status == status_after(operation)
        assert moved.generation == row.generation
    elif (operation, status) in {("mark_done", "done"), ("mark_owed", "owed")}:
        assert call(store, operation, ID, row.generation) == row  # a repeat, see below
        assert row_of(store) == row
    else:
        with pytest.raises(errors.LocalProtocolError, match=f"{operation} in state {status}"):
            call(store, operation, ID, row.generation)
        assert row_of(store) == row


@pytest.mark.parametrize(("operation", "status"), [(move.operation, move.before) for move in TRANSITIONS])
def test_an_overtaken_driver_moves_nothing(store: StateStore, operation: str, status: str) -> None:
    """D1: a zombie's note, however late, does not reach the row."""
    old = reach(store, status)
    new = claim(store)
    with pytest.raises(errors.SupersededError):
        call(store, operation, ID, old.generation)
    with pytest.raises(errors.SupersededError):
        call(store, operation, "unknown", 1)
    assert row_of(store) == new


@pytest.mark.parametrize(
    "move",
    [move for move in TRANSITIONS if move.operation != "decide"],
    ids=lambda move: f"{move.operation}-{move.before}",
)
def test_a_move_whose_answer_was_lost_can_be_repeated(store: StateStore, move: Any) -> None:
    row = reach(store, move.before)
    first = call(store, move.operation, ID, row.generation)
    again = call(store, move.operation, ID, row.generation)
    assert first is not None
    assert again is not None
    assert again == replace(first, settled_at=again.settled_at)


def test_an_empty_batch_keeps_the_pair(store: StateStore) -> None:
    """A16: there is no Kafka transaction, so the row goes on naming the last one."""
    row = reach(store, "done")
    taken = store.take_empty_batch(ID, row.generation, 1, row.prepared_transaction_state)
    counts: dict[str, Any] = {"row_count": 0, "record_count": 0, "digest": "", "kafka_offsets": {}, "topic_ids": {}}
    assert taken == replace(row, batch_id=1, decision=row.decision + 1, settled_at=taken.settled_at, **counts)


# --- the deciding transaction ----------------------------------------------------------------------------------------


def statement(store: StateStore) -> Any:
    return text("SELECT 1") if isinstance(store, SqlStateStore) else "a row"


def test_a_decision_writes_the_whole_row(store: StateStore) -> None:
    claimed = claim(store)
    store.mark_initialized(ID, claimed.generation, "4:9")
    with store.deciding(ID, claimed.generation) as transaction:
        transaction.connection.execute(statement(store))
        transaction.decide(FIRST)
        assert row_of(store).status == "none"
    row = row_of(store)
    assert row.decided_at is not None
    assert row.decided_at >= claimed.claimed_at
    told = {name: value for name, value in asdict(FIRST).items() if name not in {"prepared", "expected", "figures"}}
    told |= {"status": "decided", "prepared_transaction_state": "5:0", "settled": "", "decision": 1}
    assert row == replace(claimed, decided_at=row.decided_at, **told)


def test_a_resend_replaces_the_pair(store: StateStore) -> None:
    """B1, B28: Kafka aborted the decided batch; its records go again under a new pair, decided like any batch."""
    row = reach(store, "owed")
    decide(store, row, prepared="5:2", kafka_offsets={"orders-0": (9, 10)})
    resent = row_of(store)
    assert (resent.status, resent.prepared_transaction_state, resent.settled_at) == ("decided", "5:2", None)
    assert resent.kafka_offsets == {"orders-0": (9, 10)}


@pytest.mark.parametrize("status", ["none", "decided"])
def test_a_batch_goes_only_beside_the_decision_that_was_seen(store: StateStore, status: str) -> None:
    """C5: the claim stands, the decision beside which the batch was placed was lost: refused, whatever the status."""
    row = reach(store, status)
    left = "the state row at decision 5:8, and the row is now different"
    with pytest.raises(CommitsLostError, match=left) as raised:
        decide(store, row, expected="5:8", prepared="5:9", batch_id=1)
    assert f"{status}, decision {row.prepared_transaction_state or 'none'}" in raised.value.found
    with pytest.raises(CommitsLostError, match=left):
        store.take_empty_batch(ID, row.generation, 1, "5:8")
    assert row_of(store) == row


def test_without_a_decision_nothing_is_left(store: StateStore) -> None:
    row = claim(store)
    with store.deciding(ID, row.generation) as transaction:
        transaction.connection.execute(statement(store))
    with pytest.raises(ZeroDivisionError):
        attempt(store, row, decide_first, lambda _: 1 / 0)
    assert row_of(store) == row


def test_the_decision_is_the_last_statement_and_the_only_one(store: StateStore) -> None:
    row = claim(store)
    with store.deciding(ID, row.generation) as transaction:
        transaction.decide(FIRST)
        with pytest.raises(errors.LocalProtocolError, match="use of the connection in state decided"):
            _ = transaction.connection
        with pytest.raises(errors.LocalProtocolError, match="decide in state decided"):
            transaction.decide(FIRST)
    with pytest.raises(errors.LocalProtocolError, match="decide in state ended"):
        transaction.decide(FIRST)
    assert row_of(store).status == "decided"


def test_a_claim_ends_what_an_older_driver_has_open(store: StateStore) -> None:
    """C2: the zombie's next statement fails, and its batch may be run again by whoever owns the row then."""
    row = claim(store)
    use = statement(store)
    with pytest.raises(errors.StateStoreError) as raised:
        attempt(store, row, lambda _: claim(store), lambda transaction: transaction.connection.execute(use))
    assert (raised.value.sqlstate[:2] in {"57", "08"}, raised.value.retriable) == (True, True)
    assert row_of(store).status == "none"


def test_a_claim_defeats_a_commit_that_has_not_begun(store: StateStore) -> None:
    """C1, C2: the claim waits for the row, ends its holder, and that driver's COMMIT says: unknown."""
    row = claim(store)
    with pytest.raises(errors.CommitUnknownError):
        attempt(store, row, decide_first, lambda _: claim(store))
    assert (row_of(store).generation, row_of(store).status) == (2, "none")


def test_a_claim_leaves_other_ids_alone(store: StateStore) -> None:
    """B21: ids that begin alike, also with a colon, are different sinks."""
    others = [claim(store, transactional_id) for transactional_id in (f"{ID}:1", "ord", f"2pc:{ID}:1", f"#{ID}")]
    for other in others:
        with store.deciding(other.transactional_id, other.generation) as transaction:
            claim(store)
            transaction.decide(FIRST)
        assert row_of(store, other.transactional_id).status == "decided"


# --- both stores, one against the other ------------------------------------------------------------------------------


@pytest.mark.postgres
def test_both_stores_take_the_same_claims(database: str, sql: SqlStateStore) -> None:
    """A8, A10, D6: every combination of status, owner and claimant, by `Claimant.check` and by the claim's SQL."""
    memory = MemoryStateStore()
    memory.prepare_schema()
    patterns = {status: replace(reach(memory, status, status), run_id=None) for status in STATUSES}
    owners = (None, "own", "other")
    cases = list(itertools.product(STATUSES, owners, owners, (None, "own"), (False, True)))
    standing = [
        replace(patterns[status], transactional_id=f"tx-{number}", query_id=query, cluster_id=cluster)
        for number, (status, query, cluster, _, _) in enumerate(cases)
    ]
    memory._rows = {row.transactional_id: row for row in standing}
    not_stored = {"age_s", "decided_age_s"}
    columns = [{name: value for name, value in asdict(row).items() if name not in not_stored} for row in standing]
    with admin(database) as engine, engine.begin() as connection:
        connection.execute(insert(sql._state), columns)
    for row, (_, _, _, query_id, adopt) in zip(standing, cases, strict=True):
        claimant: dict[str, Any] = {"cluster_id": "own", "query_id": query_id, "adopt": adopt}
        answers = [claimed_or_refused(store, row.transactional_id, **claimant) for store in (memory, sql)]
        assert answers[0] == answers[1]


def claimed_or_refused(store: StateStore, transactional_id: str, **claimant: Any) -> StateRow | str:
    """The row without its times, or the refusal's text."""
    try:
        row = claim(store, transactional_id, **claimant)
    except errors.ClaimRefusedError as error:
        return str(error)
    epoch = datetime.fromtimestamp(0, timezone.utc)
    return replace(row, claimed_at=epoch, decided_at=None, settled_at=None)


def test_every_sink_is_read_over_one_connection(database: str) -> None:
    """Rows, rows that are lost, and who lives."""
    with sql_store(database) as store, sql_store(database) as looking:
        reach(store, "done", "first")
        reach(store, "done", "fourth")
        reach(store, "decided", "lost")
        claim(store, "second")
        claim(store, "third", query_id=None, run_id=None)
        run_sql(database, "DELETE FROM kafka_transaction_state WHERE transactional_id = 'lost'")
        found = looking.survey()
        assert found.table_exists
        assert [row.transactional_id for row in found.rows] == ["first", "fourth", "second", "third"]
        assert [(line.transactional_id, line.status) for line in found.lost] == [("lost", "decided")]
        # A store shows the newest of its claims that has a driver.
        assert {name: driver.alive for name, driver in found.drivers.items()} == {
            "first": False,
            "fourth": False,
            "second": True,
            "third": False,
        }
        assert found.rows[0] == store.read("first")
        assert found.drivers["second"] == looking.liveness(found.rows[2])
        one = looking.survey("lost")
        assert (one.rows, [line.transactional_id for line in one.lost]) == ((), ["lost"])
        assert looking.survey("nobody").rows == ()


#: What a column has, and what is said of it.
UNREADABLE: tuple[tuple[str, object, str], ...] = (
    ("kafka_offsets", [1, 2], 'kafka_offsets [1, 2] must be an object of "topic-partition": [first, last]'),
    ("kafka_offsets", {"t" * 100: 7}, f"kafka_offsets {{'{'t' * 78}… must be"),
    ("topic_ids", {"t": 1}, "topic_ids {'t': 1} must be an object of"),
)


def test_a_row_that_cannot_be_understood_hides_no_other(database: str) -> None:
    """Made by hand, or by a later version."""
    with sql_store(database) as store:
        reach(store, "done", "good")
        for number, (column, value, _) in enumerate(UNREADABLE):
            reach(store, "done", f"bad {number}")
            change = f"{column} = CAST(%s AS jsonb) WHERE transactional_id = 'bad {number}'"
            run_sql(database, f"UPDATE kafka_transaction_state SET {change}", json.dumps(value))
        found = store.survey()
    assert [row.transactional_id for row in found.rows] == ["good"]
    assert len(found.unreadable) == len(UNREADABLE)
    for number, (bad, (_, _, problem)) in enumerate(zip(found.unreadable, UNREADABLE, strict=True)):
        assert isinstance(bad, UnreadableRow)
        assert (bad.transactional_id, problem in bad.problem) == (f"bad {number}", True)


def test_where_the_tables_are_not(database: str) -> None:
    """Nothing has run; or the state table is gone, and its history is not; or no history is kept."""
    looking = SqlStateStore(database, settings())
    nothing = looking.survey()
    assert (nothing.table_exists, nothing.rows, nothing.lost) == (False, (), ())
    with sql_store(database) as store:
        reach(store, "decided", "first")
        reach(store, "done", "second")
        run_sql(database, "DROP TABLE kafka_transaction_state")
        lost = looking.survey()
        assert not lost.table_exists
        told = [(line.transactional_id, line.status) for line in lost.lost]
        assert told == [("first", "decided"), ("second", "done")]
    with sql_store(database, state_table="other", history_batches=0) as store:
        reach(store, "done", "third")
        assert [row.transactional_id for row in store.survey().rows] == ["third"]
    looking.close()


def test_who_keeps_the_table_locked_is_named(database: str) -> None:
    """Within the time that a lock may take."""
    with sql_store(database) as store, admin(database) as engine, engine.connect() as connection:
        connection.execute(text("SET application_name = 'vacuum of somebody'"))
        connection.execute(text("BEGIN"))
        connection.execute(text("LOCK TABLE kafka_transaction_state IN ACCESS EXCLUSIVE MODE"))
        with pytest.raises(
            errors.StateStoreError, match=r"status of every sink .* stayed locked for 200 ms.*vacuum of some"
        ):
            store.survey()
        with pytest.raises(errors.StateStoreError, match="status of 'orders'"):
            store.survey("orders")
        connection.execute(text("ROLLBACK"))


def test_another_refusal_goes_on_as_it_is(database: str, sql: SqlStateStore) -> None:
    """A table of somebody else's, for instance."""
    run_sql(database, "ALTER TABLE kafka_transaction_state DROP COLUMN settled")
    with pytest.raises(errors.StateStoreError, match="settled"):
        sql.survey()
