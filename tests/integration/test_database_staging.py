"""Staging tables: filled by tasks, emptied by the deciding transaction. C10 (leftovers, crash), C11, C12."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import psycopg2
import psycopg2.errors
import pytest
from pyspark.sql import types as t

from spark_2pc_sink.errors import (
    BatchRetryError,
    ConstraintError,
    DatabaseUnreachableError,
    DuplicateKeyError,
    LocalProtocolError,
)
from spark_2pc_sink.sink.columns import ColumnPlan
from spark_2pc_sink.sink.copy_encoder import CopyEncoder
from spark_2pc_sink.sink.identifiers import TableName
from spark_2pc_sink.sink.staging import (
    LEFTOVERS_MAX,
    StagedRows,
    StagingName,
    StagingSession,
    StagingTable,
    drop_leftover_staging,
    owner_of,
)
from spark_2pc_sink.testing.ports import free_port
from spark_2pc_sink.testing.wait import wait_until
from tests.integration.database_tables import (
    ORDERS,
    append,
    create,
    orders,
    orders_batch,
    plan_of,
    rows,
    run,
    transaction,
    upsert,
)
from tests.support.providers import Database

ID = "my sink"
SESSIONS = "SELECT count(*) FROM pg_stat_activity WHERE application_name = '2pc:my sink:3'"


def session(url: str, **more: Any) -> StagingSession:
    defaults: dict[str, Any] = {
        "database": url,
        "application_name": "2pc:my sink:3",
        "connect_timeout_s": 5,
        "lock_timeout_ms": 5_000,
        "statement_timeout_ms": 0,
        "idle_in_transaction_timeout_ms": 0,
    }
    return StagingSession(**{**defaults, **more})


def name(*, generation: int = 3, attempt: int = 1, task: int = 0, sink: str = ID) -> StagingName:
    return StagingName(owner_of(sink), generation, attempt, task)


def staged(url: str, plan: ColumnPlan, *values: tuple[Any, ...], named: StagingName | None = None) -> StagedRows:
    pieces = orders(plan, *values)
    with StagingTable(session(url), plan, name=named or name(), schema="public") as stage:
        for piece in pieces[:-1]:
            stage.write(piece)
        return stage.commit(pieces[-1])


def stages(url: str) -> list[str]:
    return [
        row[0] for row in rows(url, "SELECT relname FROM pg_class WHERE relname LIKE '\\_2pc\\_stage%%' ORDER BY 1")
    ]


def table(url: str) -> list[tuple[Any, ...]]:
    return rows(url, "SELECT id, item FROM orders ORDER BY id")


@pytest.fixture
def plan(database: str) -> ColumnPlan:
    """A plan to append to a fresh table."""
    create(database, ORDERS)
    return plan_of(database)


def test_rows_of_many_tasks_reach_the_target_and_the_tables_are_gone(database: str, plan: ColumnPlan) -> None:
    receipts = [staged(database, plan, (task, "a"), (task + 10, None), named=name(task=task)) for task in range(3)]
    assert pickle.loads(pickle.dumps(receipts)) == receipts  # noqa: S301 - our own bytes
    assert [receipt.rows for receipt in receipts] == [2, 2, 2]
    assert table(database) == []
    assert len(stages(database)) == 3
    with transaction(database) as connection:
        assert append(connection, plan, staged=receipts) == 6
        assert append(connection, plan, [orders(plan, (99, "inline"))]) == 1
    assert len(table(database)) == 7
    assert stages(database) == []


def test_tables_stay_when_the_deciding_transaction_rolls_back(database: str, plan: ColumnPlan) -> None:
    receipt = staged(database, plan, (1, "a"))
    with transaction(database, commit=False) as connection:
        append(connection, plan, staged=[receipt])
    assert table(database) == []
    assert stages(database) == [receipt.table.name]


def test_memory_is_bounded_by_several_copies(database: str, plan: ColumnPlan) -> None:
    """Rows that the encoder holds back reach the table with the last piece."""
    encoder = CopyEncoder(plan)
    with StagingTable(session(database), plan, name=name(), schema="public", flush_bytes=2_000_000) as stage:
        for number in range(40):
            batch = orders_batch(plan, *((number * 100 + row, "x" * 2_000) for row in range(100)))
            stage.write(encoder.encode(batch))
            assert sum(map(len, stage._pieces)) < 2_000_000
        receipt = stage.commit(encoder.finish())
    assert receipt.rows == encoder.rows == 4_000
    assert rows(database, f"SELECT count(DISTINCT id), min(length(item)) FROM {receipt.table}") == [(4_000, 2_000)]


def test_task_without_rows_leaves_an_empty_table(database: str, plan: ColumnPlan) -> None:
    receipt = staged(database, plan)
    assert receipt.rows == 0
    with transaction(database) as connection:
        assert append(connection, plan, staged=[receipt]) == 0
    assert stages(database) == []


def test_table_is_unlogged_and_of_the_target_s_types(database: str) -> None:
    run(database, 'CREATE TABLE orders (id bigint PRIMARY KEY, item varchar(5) COLLATE "C" NOT NULL)')
    plan = plan_of(database, order=t.DecimalType(9, 2), keys=["id"])
    receipt = staged(database, plan, (1, "a", 1))
    shape = (
        "SELECT relpersistence::text, string_agg(attname || ' ' || format_type(atttypid, atttypmod) || ' ' || "
        "coalesce(collname, '-'), ', ' ORDER BY attnum) FROM pg_class c JOIN pg_attribute a ON attrelid = c.oid AND "
        "attnum > 0 LEFT JOIN pg_collation l ON l.oid = attcollation WHERE relname = '{}' GROUP BY 1"
    )
    assert rows(database, shape.format(receipt.table.name)) == [
        ("u", "id bigint -, item character varying(5) C, _2pc_order numeric -")
    ]


def test_task_that_fails_leaves_nothing(database: str, plan: ColumnPlan) -> None:
    stage = StagingTable(session(database), plan, name=name(), schema="public", flush_bytes=1)
    pieces = orders(plan, (1, "a"))
    with stage:
        stage.write(pieces[0])
    assert stages(database) == []
    with pytest.raises(LocalProtocolError):
        stage.commit(pieces[-1])
    with (
        pytest.raises(LocalProtocolError),
        StagingTable(session(database), plan, name=name(), schema="public") as other,
    ):
        other.write(b"no header")
    with pytest.raises(LocalProtocolError), StagingTable(session(database), plan, name=name(), schema="public") as last:
        last.commit(b"no trailer")
    assert stages(database) == []


def test_name_that_is_taken_throws_the_attempt_away(database: str, plan: ColumnPlan) -> None:
    """C10: rows of an earlier attempt are never taken for those of this one."""
    first = staged(database, plan, (1, "first"))
    with pytest.raises(BatchRetryError, match="is there already"):
        staged(database, plan, (2, "second"))
    assert rows(database, f"SELECT item FROM {first.table}") == [("first",)]


def test_bad_row_is_refused_by_the_task_already(database: str) -> None:
    run(database, "CREATE TABLE orders (id bigint, item jsonb)")
    plan = plan_of(database)
    with pytest.raises(ConstraintError, match="22P02"):
        staged(database, plan, (1, "{"))
    assert stages(database) == []


def test_constraint_of_the_target_is_named(database: str) -> None:
    create(database, ORDERS, keys=["id"])
    plan = plan_of(database)
    receipt = staged(database, plan, (1, "a"), (1, "b"))
    with pytest.raises(ConstraintError, match=r"\(id\)=\(1\) already exists"), transaction(database) as connection:
        append(connection, plan, staged=[receipt])


def test_row_that_a_trigger_swallows_is_not_taken_for_a_crash(database: str, plan: ColumnPlan) -> None:
    run(
        database,
        "CREATE FUNCTION skip() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$",
        "CREATE TRIGGER skip BEFORE INSERT ON orders FOR EACH ROW WHEN (NEW.id = 2) EXECUTE FUNCTION skip()",
    )
    receipt = staged(database, plan, (1, "a"), (2, "b"))
    with pytest.raises(ConstraintError, match=r"2 rows .* and 1 arrived"), transaction(database) as connection:
        append(connection, plan, staged=[receipt])


# --- crash -----------------------------------------------------------------------------------------------------


def load_append(connection: Any, plan: ColumnPlan, receipts: list[StagedRows]) -> None:
    append(connection, plan, staged=receipts)


def load_upsert(connection: Any, plan: ColumnPlan, receipts: list[StagedRows]) -> None:
    upsert(connection, plan, [], receipts)


@pytest.mark.parametrize("load", [load_append, load_upsert])
def test_crash_of_the_server_empties_staging_and_is_noticed(
    start_postgres: Callable[..., Any], load: Callable[..., None]
) -> None:
    """C10: "UNLOGGED staging is emptied by crash recovery: never commit an empty stage silently"."""
    server = start_postgres()
    url = server.create_database("crash")
    create(url, ORDERS, keys=["id"])
    plan = plan_of(url, keys=["id"])
    receipt = staged(url, plan, (1, "a"), (2, "b"))
    server.kill()
    server.start()
    with pytest.raises(BatchRetryError, match="has 0 rows and its task put 2"), transaction(url) as connection:
        load(connection, plan, [receipt])
    assert table(url) == []


@pytest.mark.parametrize("load", [load_append, load_upsert])
def test_table_that_is_gone_is_noticed(database: str, load: Callable[..., None]) -> None:
    create(database, ORDERS, keys=["id"])
    plan = plan_of(database, keys=["id"])
    receipts = [staged(database, plan, (task, "a"), named=name(task=task)) for task in (1, 2)]
    run(database, f"DROP TABLE {receipts[1].table}")
    gone = f"{receipts[1].table} of this batch is gone"
    with pytest.raises(BatchRetryError, match=gone), transaction(database) as connection:
        load(connection, plan, receipts)
    assert table(database) == []


@pytest.mark.parametrize("load", [load_append, load_upsert])
def test_table_altered_after_staging_is_noticed(database: str, load: Callable[..., None]) -> None:
    """INSERT … SELECT would convert, and round on the way."""
    create(database, {**ORDERS, "item": t.DecimalType(10, 2)}, keys=["id"])
    plan = plan_of(database, {**ORDERS, "item": t.DecimalType(10, 2)}, keys=["id"])
    receipt = staged(database, plan, (1, Decimal("1.25")))
    run(database, "ALTER TABLE orders ALTER item TYPE numeric(10,1)")
    altered = r"was numeric\(10,2\) and is numeric\(10,1\)"
    with pytest.raises(BatchRetryError, match=altered), transaction(database) as connection:
        load(connection, plan, [receipt])
    with pytest.raises(BatchRetryError, match=altered):
        staged(database, plan, (1, Decimal("1.25")), named=name(attempt=2))
    assert table(database) == []
    assert stages(database) == [receipt.table.name]


# --- upsert ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [None, t.LongType()])
def test_upsert_takes_rows_from_both_ways(database: str, order: t.DataType | None) -> None:
    create(database, ORDERS, keys=["id"])
    run(database, "INSERT INTO orders VALUES (2, 'old')")
    plan = plan_of(database, keys=["id"], order=order)
    more: tuple[int, ...] = () if order is None else (1,)
    receipts = [staged(database, plan, (task, "staged", *more), named=name(task=task)) for task in (1, 2)]
    with transaction(database) as connection:
        result = upsert(connection, plan, [orders(plan, (3, "inline", *more))], receipts)
    assert result == (3, 3)
    assert table(database) == [(1, "staged"), (2, "staged"), (3, "inline")]
    assert stages(database) == []


def test_key_in_a_stream_and_in_a_staging_table_is_twice_in_the_batch(database: str) -> None:
    create(database, ORDERS, keys=["id"])
    plan = plan_of(database, keys=["id"])
    receipt = staged(database, plan, (1, "staged"), (5, "staged"))
    with pytest.raises(DuplicateKeyError, match="with id=5;"), transaction(database) as connection:
        upsert(connection, plan, [orders(plan, (5, "inline"))], [receipt])


# --- names and leftovers ---------------------------------------------------------------------------------------


def test_names_are_read_back_and_fit() -> None:
    longest = StagingName(owner_of(ID), 2**31, 2**31, 2**31)
    assert StagingName.parse(str(longest)) == longest
    assert len(str(longest)) <= 63
    for foreign in ("_2pc_stage_abc_1_1_1", "_2pc_stage_0123456789_1_1", "x_2pc_stage_0123456789_1_1_1", "orders"):
        assert StagingName.parse(foreign) is None
    assert owner_of("a") != owner_of("b")


def test_only_older_leftovers_of_the_same_sink_are_dropped(database: str, plan: ColumnPlan) -> None:
    older = [name(generation=2, attempt=9), name(generation=3, attempt=1, task=7), name(generation=3, attempt=2)]
    kept = [name(generation=3, attempt=3), name(generation=4), name(generation=1, sink="other"), name(generation=10)]
    for one in older + kept:
        staged(database, plan, (1, "a"), named=one)
    look_alike = f"_2pc_stage_{owner_of(ID)}_1_1_x"
    run(database, f"CREATE TABLE {look_alike} ()", "CREATE SCHEMA s", f"CREATE TABLE s.{older[0]} ()")
    with transaction(database) as connection:
        dropped = drop_leftover_staging(connection, schema="public", transactional_id=ID, generation=3, attempt=3)
    assert set(dropped) == {TableName(str(one), "public") for one in older}
    assert stages(database) == sorted([*map(str, kept), look_alike, str(older[0])])
    with transaction(database) as connection:
        dropped = drop_leftover_staging(connection, schema="public", transactional_id=ID, generation=4)
    assert dropped == (TableName(str(kept[0]), "public"),)


def test_leftovers_are_dropped_in_bounded_numbers(database: str) -> None:
    many = LEFTOVERS_MAX + 3
    run(
        database,
        f"DO $$ BEGIN FOR n IN 1..{many} LOOP EXECUTE format('CREATE TABLE _2pc_stage_{owner_of(ID)}_1_1_%s ()', n);"
        " END LOOP; END $$",
    )
    counts = []
    for _ in range(3):
        with transaction(database) as connection:
            dropped = drop_leftover_staging(connection, schema="public", transactional_id=ID, generation=2)
        counts.append(len(dropped))
    assert counts == [LEFTOVERS_MAX, 3, 0]


# --- sessions --------------------------------------------------------------------------------------------------


def test_session_is_known_by_its_name_and_ends_with_its_task(database: str, plan: ColumnPlan) -> None:
    """C11: one short connection, and none that stays."""
    with StagingTable(session(database), plan, name=name(), schema="public") as stage:
        assert rows(database, SESSIONS) == [(1,)]
        stage.commit(CopyEncoder(plan).finish())
    wait_until(lambda: rows(database, SESSIONS) == [(0,)], deadline_s=20, what="the end of the session")


def test_waits_of_a_session_are_bounded(database: str, plan: ColumnPlan) -> None:
    """C12: the bounds are ours, not the server's defaults."""
    with transaction(database) as blocker:
        blocker.exec_driver_sql("LOCK TABLE orders")
        bounds = session(database, lock_timeout_ms=100, statement_timeout_ms=10_000)
        waiting = StagingTable(bounds, plan, name=name(), schema="public")
        with pytest.raises(psycopg2.errors.LockNotAvailable), waiting:
            pass
    idle = session(database, idle_in_transaction_timeout_ms=50)
    with StagingTable(idle, plan, name=name(), schema="public") as stage:
        wait_until(lambda: rows(database, SESSIONS) == [(0,)], deadline_s=20, what="the end of an idle session")
        with pytest.raises(psycopg2.Error):
            stage.commit(CopyEncoder(plan).finish())
    assert stages(database) == []


def test_unreachable_database_is_said_without_the_password(plan: ColumnPlan) -> None:
    nowhere = session(f"postgresql+psycopg2://me:secret@127.0.0.1:{free_port()}/db")
    with pytest.raises(DatabaseUnreachableError, match="refused") as caught:
        nowhere.connect()
    assert "secret" not in str(caught.value)


def test_role_needs_no_more_than_create_and_insert(postgres: Database, database: str, plan: ColumnPlan) -> None:
    """Appending reads nothing of the target."""
    run(
        database,
        "CREATE ROLE writer LOGIN PASSWORD 'pw'",
        "GRANT INSERT ON orders TO writer",
        "CREATE SCHEMA stage AUTHORIZATION writer",
    )
    address = database.rsplit("@", 1)[1]
    as_writer = f"postgresql+psycopg2://writer:pw@{address}"
    try:
        with StagingTable(session(as_writer), plan, name=name(), schema="stage") as stage:
            pieces = orders(plan, (1, "a"))
            stage.write(pieces[0])
            receipt = stage.commit(pieces[1])
        with transaction(as_writer) as connection:
            assert append(connection, plan, staged=[receipt]) == 1
        assert table(database) == [(1, "a")]
    finally:
        run(database, "DROP OWNED BY writer", "DROP ROLE writer")
