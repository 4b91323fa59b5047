"""Staging tables: filled by tasks part by part, emptied meanwhile by the deciding transaction. C10, C11, C12."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg2
import psycopg2.errors
import pytest
import sqlalchemy as sa
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
from spark_2pc_sink.sink.database import AppendedRows, TableRows, UpsertedRows
from spark_2pc_sink.sink.identifiers import TableName
from spark_2pc_sink.sink.receipts import EncodedSource
from spark_2pc_sink.sink.row_copy import RowCopy
from spark_2pc_sink.sink.row_feed import RowFeed, SourceRows
from spark_2pc_sink.sink.staging import (
    LEFTOVERS_MAX,
    StagedParts,
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
ATTEMPT = (ID, 3, 1)
SESSIONS = "SELECT count(*) FROM pg_stat_activity WHERE application_name = '2pc:my sink:3'"
RUN = 2**40
#: One row of it is more than an encoder holds back.
LARGE = "x" * 2**21


def session(url: str, **more: Any) -> StagingSession:
    defaults: dict[str, Any] = {
        "database": url,
        "application_name": "2pc:my sink:3",
        "connect_timeout_s": 5,
        "lock_timeout_ms": 5_000,
        "statement_timeout_ms": 0,
    }
    return StagingSession(**{**defaults, **more})


def name(*, generation: int = 3, attempt: int = 1, task: int = 0, sink: str = ID) -> StagingName:
    return StagingName(owner_of(sink), generation, attempt, task)


def staging(url: str, *, named: StagingName | None = None, schema: str = "public", **more: Any) -> StagingTable:
    return StagingTable(session(url), name=named or name(), schema=schema, run=RUN, **more)


def staged(url: str, plan: ColumnPlan, *values: tuple[Any, ...], named: StagingName | None = None) -> EncodedSource:
    """What a task does with such rows, and its account."""
    pieces = orders(plan, *values)
    with staging(url, named=named) as stage:
        for piece in pieces[:-1]:
            stage.write(piece)
        stage.finish(pieces[-1])
    return EncodedSource((named or name()).task, run=RUN, copy_rows=len(values), staged_parts=stage.parts)


def parts(connection: sa.Connection, schema: str = "public") -> StagedParts:
    return StagedParts(connection, schema=schema, owner=owner_of(ID), generation=3, attempt=1)


def copying(
    connection: sa.Connection,
    plan: ColumnPlan,
    feed: RowFeed | None = None,
    kind: Callable[[sa.Connection, ColumnPlan], TableRows] = AppendedRows,
) -> RowCopy:
    return RowCopy(
        feed or RowFeed(),
        ATTEMPT,
        begin=lambda: connection,
        table=lambda opened: kind(opened, plan),
        staged=parts,
        idle_s=0.01,
        early=False,
    )


def taken(copy: RowCopy) -> bool:
    """True when it has taken something that was staged."""
    return copy._staged is not None and bool(copy._staged.taken)


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
    sources = [staged(database, plan, (task, "a"), (task + 10, None), named=name(task=task)) for task in range(3)]
    assert table(database) == []
    assert len(stages(database)) == 3
    feed = RowFeed()
    with transaction(database) as connection:
        with copying(connection, plan, feed) as copy:
            feed.extend([SourceRows(ATTEMPT, 3, 7, tuple(orders(plan, (99, "inline"))))])
        assert copy.finish(connection, [*sources, EncodedSource(3, run=7, copy_rows=1)]) == 7
    assert [row[0] for row in table(database)] == [0, 1, 2, 10, 11, 12, 99]
    assert stages(database) == []


def test_parts_are_taken_while_the_task_goes_on(database: str, plan: ColumnPlan) -> None:
    """Each once and in order, by a transaction that has begun before the table was there."""
    encoder = CopyEncoder(plan)

    def more(stage: StagingTable, *ids: int) -> None:
        stage.write(encoder.encode(orders_batch(plan, *((number, LARGE) for number in ids))))

    with transaction(database) as connection:
        target, staged = AppendedRows(connection, plan), parts(connection)
        assert list(staged.arrived()) == []
        with staging(database, part_bytes=1) as stage:
            more(stage, 1, 2)
            assert [target.copy(stream) for stream in staged.arrived()] == [2]
            assert list(staged.arrived()) == []
            more(stage, 3)
            more(stage, 4)
            assert [target.copy(stream) for stream in staged.arrived()] == [1, 1]
            more(stage, 5)
            stage.finish(encoder.finish())
        assert [target.copy(stream) for stream in staged.arrived()] == [1]
        assert staged.taken == {0: (RUN, stage.parts)} == {0: (RUN, 4)}
        target.finish(5)
        staged.drop()
    assert [row[0] for row in table(database)] == [1, 2, 3, 4, 5]
    assert stages(database) == []


def test_a_running_job_s_rows_are_written(database: str, plan: ColumnPlan) -> None:
    """Nothing arrives through the driver, so it looks for what is staged."""
    with transaction(database) as connection:
        with copying(connection, plan) as copy:
            source = staged(database, plan, (1, "a"))
            wait_until(lambda: taken(copy), deadline_s=20, what="the staged rows")
        assert copy.finish(connection, [source]) == 1
    assert table(database) == [(1, "a")]


def test_tables_stay_when_the_deciding_transaction_rolls_back(database: str, plan: ColumnPlan) -> None:
    source = staged(database, plan, (1, "a"))
    with transaction(database, commit=False) as connection:
        copying(connection, plan).finish(connection, [source])
    assert table(database) == []
    assert stages(database) == [str(name())]


def test_memory_is_bounded_by_several_parts(database: str, plan: ColumnPlan) -> None:
    """Rows that the encoder holds back reach the table with the last piece."""
    encoder = CopyEncoder(plan)
    with staging(database, part_bytes=2_000_000) as stage:
        for number in range(40):
            batch = orders_batch(plan, *((number * 100 + row, "x" * 2_000) for row in range(100)))
            stage.write(encoder.encode(batch))
            assert sum(map(len, stage._pieces)) < 2_000_000
        stage.finish(encoder.finish())
    assert stage.parts > 3
    with transaction(database) as connection:
        assert append(connection, plan, parts(connection).arrived()) == encoder.rows == 4_000
    assert rows(database, "SELECT count(DISTINCT id), min(length(item)) FROM orders") == [(4_000, 2_000)]


def test_a_table_is_unlogged_and_its_parts_are_not_compressed(database: str) -> None:
    with staging(database):
        pass
    assert rows(
        database,
        "SELECT relpersistence::text, string_agg(attname || ' ' || attstorage::text, ', ' ORDER BY attnum) "
        f"FROM pg_class c JOIN pg_attribute a ON attrelid = c.oid AND attnum > 0 WHERE relname = '{name()}' GROUP BY 1",
    ) == [("u", "part p, run p, stream e")]


def test_a_stream_that_is_not_whole_is_refused(database: str, plan: ColumnPlan) -> None:
    with pytest.raises(LocalProtocolError, match="header"), staging(database) as stage:
        stage.write(b"no header")
    with pytest.raises(LocalProtocolError, match="trailer"), staging(database, named=name(task=1)) as stage:
        stage.finish(b"no trailer")
    with staging(database, named=name(task=2), part_bytes=1) as stage:
        pass
    with pytest.raises(LocalProtocolError, match="between"):
        stage.write(orders(plan, (1, LARGE))[0])


def test_name_that_is_taken_throws_the_attempt_away(database: str, plan: ColumnPlan) -> None:
    """C10: rows of an earlier attempt, or of an earlier run of the source, are never taken for those of this one."""
    first = staged(database, plan, (1, "first"))
    with pytest.raises(BatchRetryError, match="is there already"):
        staged(database, plan, (2, "second"))
    with transaction(database) as connection:
        copying(connection, plan).finish(connection, [first])
    assert table(database) == [(1, "first")]


def test_rows_of_a_run_that_died_are_not_taken_for_those_of_the_next(database: str, plan: ColumnPlan) -> None:
    """A4: the first has staged a part, the second needs no table."""
    staged(database, plan, (1, "first"))
    feed = RowFeed()
    second = EncodedSource(0, run=8, copy_rows=1)
    with transaction(database, commit=False) as connection:
        with copying(connection, plan, feed) as copy:
            wait_until(lambda: taken(copy), deadline_s=20, what="the staged rows")
            feed.extend([SourceRows(ATTEMPT, 0, 8, tuple(orders(plan, (1, "second"))))])
        with pytest.raises(BatchRetryError, match="were written"):
            copy.finish(connection, [second])


def test_constraint_of_the_target_is_named(database: str) -> None:
    create(database, ORDERS, keys=["id"])
    plan = plan_of(database)
    source = staged(database, plan, (1, "a"), (1, "b"))
    with pytest.raises(ConstraintError, match=r"\(id\)=\(1\) already exists"), transaction(database) as connection:
        copying(connection, plan).finish(connection, [source])


def test_row_that_a_trigger_swallows_is_not_taken_for_a_crash(database: str, plan: ColumnPlan) -> None:
    run(
        database,
        "CREATE FUNCTION skip() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$",
        "CREATE TRIGGER skip BEFORE INSERT ON orders FOR EACH ROW WHEN (NEW.id = 2) EXECUTE FUNCTION skip()",
    )
    source = staged(database, plan, (1, "a"), (2, "b"))
    with pytest.raises(ConstraintError, match=r"2 rows .* and 1 arrived"), transaction(database) as connection:
        copying(connection, plan).finish(connection, [source])


# --- crash -----------------------------------------------------------------------------------------------------

BOTH_WAYS = pytest.mark.parametrize("kind", [AppendedRows, UpsertedRows])


@BOTH_WAYS
def test_crash_of_the_server_empties_staging_and_is_noticed(start_postgres: Callable[..., Any], kind: Any) -> None:
    """C10: "UNLOGGED staging is emptied by crash recovery: never commit an empty stage silently"."""
    server = start_postgres()
    url = server.create_database("crash")
    create(url, ORDERS, keys=["id"])
    plan = plan_of(url, keys=["id"])
    source = staged(url, plan, (1, "a"), (2, "b"))
    server.kill()
    server.start()
    with pytest.raises(BatchRetryError, match=r"and \{\} were written"), transaction(url) as connection:
        copying(connection, plan, kind=kind).finish(connection, [source])
    assert table(url) == []


@BOTH_WAYS
def test_table_that_is_gone_is_noticed(database: str, kind: Any) -> None:
    create(database, ORDERS, keys=["id"])
    plan = plan_of(database, keys=["id"])
    sources = [staged(database, plan, (task, "a"), named=name(task=task)) for task in (1, 2)]
    run(database, f"DROP TABLE {name(task=2)}")
    with pytest.raises(BatchRetryError, match="were written"), transaction(database) as connection:
        copying(connection, plan, kind=kind).finish(connection, sources)
    assert table(database) == []


def test_table_that_goes_while_it_is_looked_at_is_noticed(database: str, plan: ColumnPlan) -> None:
    for task in (1, 2):
        staged(database, plan, (task, "a"), named=name(task=task))
    with transaction(database, commit=False) as connection:
        arrived = parts(connection).arrived()
        next(arrived)
        run(database, f"DROP TABLE {name(task=2)}")
        with pytest.raises(BatchRetryError, match=f"{name(task=2)} of this batch is gone"):
            list(arrived)


# --- upsert ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [None, t.LongType()])
def test_upsert_takes_rows_from_both_ways(database: str, order: t.DataType | None) -> None:
    create(database, ORDERS, keys=["id"])
    run(database, "INSERT INTO orders VALUES (2, 'old')")
    plan = plan_of(database, keys=["id"], order=order)
    more: tuple[int, ...] = () if order is None else (1,)
    for task in (1, 2):
        staged(database, plan, (task, "staged", *more), named=name(task=task))
    with transaction(database) as connection:
        result = upsert(connection, plan, both_ways(connection, orders(plan, (3, "inline", *more))))
    assert result == (3, 3)
    assert table(database) == [(1, "staged"), (2, "staged"), (3, "inline")]


def test_key_in_a_stream_and_in_a_staging_table_is_twice_in_the_batch(database: str) -> None:
    create(database, ORDERS, keys=["id"])
    plan = plan_of(database, keys=["id"])
    staged(database, plan, (1, "staged"), (5, "staged"))
    with pytest.raises(DuplicateKeyError, match="with id=5;"), transaction(database) as connection:
        upsert(connection, plan, both_ways(connection, orders(plan, (5, "inline"))))


def both_ways(connection: sa.Connection, inline: list[bytes]) -> Iterator[Any]:
    yield inline
    yield from parts(connection).arrived()


# --- names and leftovers ---------------------------------------------------------------------------------------


def test_names_are_read_back_and_fit() -> None:
    longest = StagingName(owner_of(ID), 2**31, 2**31, 2**31)
    assert StagingName.parse(str(longest)) == longest
    assert len(str(longest)) <= 63
    for foreign in ("_2pc_stage_abc_1_1_1", "_2pc_stage_0123456789_1_1", "x_2pc_stage_0123456789_1_1_1", "orders"):
        assert StagingName.parse(foreign) is None
    assert owner_of("a") != owner_of("b")


def test_only_older_leftovers_of_the_same_sink_are_dropped(database: str, plan: ColumnPlan) -> None:
    older = [name(generation=1, task=7), name(generation=2, attempt=9)]
    kept = [name(generation=3), name(generation=4), name(generation=1, sink="other"), name(generation=10)]
    for one in older + kept:
        staged(database, plan, (1, "a"), named=one)
    look_alike = f"_2pc_stage_{owner_of(ID)}_1_1_x"
    run(database, f"CREATE TABLE {look_alike} ()", "CREATE SCHEMA s", f"CREATE TABLE s.{older[0]} ()")
    with transaction(database) as connection:
        dropped = drop_leftover_staging(connection, schema="public", transactional_id=ID, generation=3)
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
    """C11: one short connection, and none that stays; a newer driver ends it between two parts, too."""
    with staging(database) as stage:
        assert rows(database, SESSIONS) == [(1,)]
        stage.finish(CopyEncoder(plan).finish())
    wait_until(lambda: rows(database, SESSIONS) == [(0,)], deadline_s=20, what="the end of the session")


def test_waits_of_a_session_are_bounded(database: str, plan: ColumnPlan) -> None:
    """C12: the bounds are ours, not the server's defaults, in each transaction of the session."""
    bounds = session(database, lock_timeout_ms=100, statement_timeout_ms=10_000)
    stage = StagingTable(bounds, name=name(), schema="public", run=RUN, part_bytes=1)
    with stage, transaction(database) as blocker:
        blocker.exec_driver_sql(f"LOCK TABLE {name()}")
        with pytest.raises(psycopg2.errors.LockNotAvailable):
            stage.write(orders(plan, (1, LARGE))[0])


def test_unreachable_database_is_said_without_the_password() -> None:
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
        with staging(as_writer, schema="stage") as stage:
            pieces = orders(plan, (1, "a"))
            stage.write(pieces[0])
            stage.finish(pieces[1])
        with transaction(as_writer) as connection:
            assert append(connection, plan, parts(connection, "stage").arrived()) == 1
        assert table(database) == [(1, "a")]
    finally:
        run(database, "DROP OWNED BY writer", "DROP ROLE writer")
