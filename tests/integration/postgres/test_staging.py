"""Rows that tasks stage part by part, taken meanwhile by the deciding transaction, in both places. A4, C10."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import types as t

from spark_2pc_sink.errors import BatchRetryError, ConstraintError, DuplicateKeyError
from spark_2pc_sink.sink.contract.row_transfer import Transfer
from spark_2pc_sink.sink.table.copy_encoder import CopyEncoder
from spark_2pc_sink.sink.table.keyed_rows import KeyedRows
from spark_2pc_sink.sink.table.table_writer import AppendedRows
from spark_2pc_sink.sink.transfer.copy_channel import CopyChannel
from spark_2pc_sink.sink.transfer.staging_files import FileStaging
from spark_2pc_sink.testing.wait import wait_until
from tests.integration.postgres.database_tables import (
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
from tests.integration.postgres.staging_places import (
    LARGE,
    RUN,
    TICKET,
    copied,
    copying,
    name,
    stage,
    table,
    tables,
    taken,
    writing,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import sqlalchemy as sa

    from spark_2pc_sink.sink.contract.row_transfer import Staging
    from spark_2pc_sink.sink.table.column_plan import ColumnPlan
    from spark_2pc_sink.sink.transfer.row_encoder import PartWriter


@pytest.fixture(params=["tables", "files"])
def place(request: pytest.FixtureRequest, database: str, tmp_path: Path) -> Staging:
    """Where rows are staged."""
    return tables(database) if request.param == "tables" else FileStaging(tmp_path / "rows")


@pytest.fixture
def plan(database: str) -> ColumnPlan:
    """A plan to append to a fresh table."""
    create(database, ORDERS)
    return plan_of(database)


def left(place: Staging, database: str) -> int:
    """How many parts, or tables of them, are there."""
    if isinstance(place, FileStaging):
        return len(list(place.folder.glob("*/*/*")))
    return len(rows(database, "SELECT 1 FROM pg_tables WHERE tablename LIKE '\\_2pc\\_stage%%'"))


def test_rows_of_many_tasks_reach_the_target_and_no_part_is_left(
    database: str, plan: ColumnPlan, place: Staging
) -> None:
    sources = [stage(place, plan, (source, "a"), (source + 10, None), source=source) for source in range(3)]
    assert table(database) == []
    assert left(place, database) == 3
    channel = CopyChannel()
    with transaction(database) as connection:
        with copying(connection, plan, place, channel) as copy:
            channel.extend([Transfer(TICKET.attempt, 3, 7, tuple(orders(plan, (99, "inline"))))])
        assert copy.finish(connection, [*sources, copied(3, 1, task_attempt=7)]).given == 7
    assert [row[0] for row in table(database)] == [0, 1, 2, 10, 11, 12, 99]
    # Tables go after the decision, all at once; files one by one, when they are read.
    assert left(place, database) == (0 if isinstance(place, FileStaging) else 3)


def test_parts_are_taken_while_the_task_goes_on(database: str, plan: ColumnPlan, place: Staging) -> None:
    """Each once and in order, by a transaction that has begun before anything was there."""
    encoder = CopyEncoder(plan)

    def more(writer: PartWriter, *ids: int) -> None:
        writer.write(encoder.encode(orders_batch(plan, *((number, LARGE) for number in ids))))

    with transaction(database) as connection:
        target, staged = AppendedRows(connection, plan), place.staged(connection)
        assert list(staged.arrived()) == []
        with writing(place, part_bytes=1) as writer:
            more(writer, 1, 2)
            assert [target.copy(stream) for stream in staged.arrived()] == [2]
            assert list(staged.arrived()) == []
            more(writer, 3)
            more(writer, 4)
            assert [target.copy(stream) for stream in staged.arrived()] == [1, 1]
            more(writer, 5)
            writer.finish(encoder.finish())
        assert [target.copy(stream) for stream in staged.arrived()] == [1]
        assert staged.taken == {0: (RUN, writer.parts)} == {0: (RUN, 4)}
        target.finish(5)
    assert [row[0] for row in table(database)] == [1, 2, 3, 4, 5]


def test_a_running_job_s_rows_are_written(database: str, plan: ColumnPlan, place: Staging) -> None:
    """Nothing arrives through the driver, so it looks for what is staged."""
    with transaction(database) as connection:
        with copying(connection, plan, place) as copy:
            source = stage(place, plan, (1, "a"))
            wait_until(lambda: taken(copy), deadline_s=20, what="the staged rows")
        assert copy.finish(connection, [source]).given == 1
    assert table(database) == [(1, "a")]


def test_a_look_is_a_sign_of_life(database: str, place: Staging) -> None:
    """C12: the server ends idle transactions, to be rid of drivers that are gone; this one is not."""
    with transaction(database) as connection:
        pid = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar()
        changed = f"SELECT state_change FROM pg_stat_activity WHERE pid = {pid}"
        before = rows(database, changed)
        assert list(place.staged(connection).arrived()) == []
        assert rows(database, changed) > before


def test_memory_is_bounded_by_several_parts(database: str, plan: ColumnPlan, place: Staging) -> None:
    """Rows that the encoder holds back reach the table with the last piece."""
    encoder = CopyEncoder(plan)
    with writing(place, part_bytes=2_000_000) as writer:
        for number in range(40):
            batch = orders_batch(plan, *((number * 100 + row, "x" * 2_000) for row in range(100)))
            writer.write(encoder.encode(batch))
            assert sum(map(len, writer._chunks)) < 2_000_000
        writer.finish(encoder.finish())
    assert writer.parts > 3
    with transaction(database) as connection:
        assert append(connection, plan, place.staged(connection).arrived()) == encoder.rows == 4_000
    assert rows(database, "SELECT count(DISTINCT id), min(length(item)) FROM orders") == [(4_000, 2_000)]


def test_a_source_that_ran_again_throws_the_attempt_away(database: str, plan: ColumnPlan, place: Staging) -> None:
    """C10: rows of an earlier run of the source are never taken for those of this one."""
    first = stage(place, plan, (1, "first"))
    with pytest.raises(BatchRetryError, match="is there already: its encode task ran again"):
        stage(place, plan, (2, "second"))
    with transaction(database) as connection:
        copying(connection, plan, place).finish(connection, [first])
    assert table(database) == [(1, "first")]


def test_rows_of_a_run_that_died_are_not_taken_for_those_of_the_next(
    database: str, plan: ColumnPlan, place: Staging
) -> None:
    """A4: the first has staged a part, the second staged none."""
    stage(place, plan, (1, "first"))
    channel = CopyChannel()
    second = copied(0, 1, task_attempt=8)
    with transaction(database, commit=False) as connection:
        with copying(connection, plan, place, channel) as copy:
            wait_until(lambda: taken(copy), deadline_s=20, what="the staged rows")
            channel.extend([Transfer(TICKET.attempt, 0, 8, tuple(orders(plan, (1, "second"))))])
        with pytest.raises(BatchRetryError, match="were written"):
            copy.finish(connection, [second])


def test_constraint_of_the_target_is_named(database: str, place: Staging) -> None:
    create(database, ORDERS, keys=["id"])
    plan = plan_of(database)
    source = stage(place, plan, (1, "a"), (1, "b"))
    with pytest.raises(ConstraintError, match=r"\(id\)=\(1\) already exists"), transaction(database) as connection:
        copying(connection, plan, place).finish(connection, [source])


def test_row_that_a_trigger_swallows_is_not_taken_for_a_crash(database: str, plan: ColumnPlan, place: Staging) -> None:
    run(
        database,
        "CREATE FUNCTION skip() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$",
        "CREATE TRIGGER skip BEFORE INSERT ON orders FOR EACH ROW WHEN (NEW.id = 2) EXECUTE FUNCTION skip()",
    )
    source = stage(place, plan, (1, "a"), (2, "b"))
    with pytest.raises(ConstraintError, match=r"2 rows .* and 1 arrived"), transaction(database) as connection:
        copying(connection, plan, place).finish(connection, [source])


@pytest.mark.parametrize("kind", [AppendedRows, KeyedRows])
def test_rows_that_have_vanished_are_noticed(database: str, place: Staging, kind: Any) -> None:
    """C10: never commit without them."""
    create(database, ORDERS, keys=["id"])
    plan = plan_of(database, keys=["id"])
    sources = [stage(place, plan, (source, "a"), source=source) for source in (1, 2)]
    if isinstance(place, FileStaging):
        shutil.rmtree(place.folder / "2")
    else:
        run(database, f"DROP TABLE {name(source=2)}")
    with pytest.raises(BatchRetryError, match="were written"), transaction(database) as connection:
        copying(connection, plan, place, kind=kind).finish(connection, sources)
    assert table(database) == []


@pytest.mark.parametrize("order", [None, t.LongType()])
def test_upsert_takes_rows_from_both_ways(database: str, place: Staging, order: t.DataType | None) -> None:
    create(database, ORDERS, keys=["id"])
    run(database, "INSERT INTO orders VALUES (2, 'old')")
    plan = plan_of(database, keys=["id"], order=order)
    more: tuple[int, ...] = () if order is None else (1,)
    for source in (1, 2):
        stage(place, plan, (source, "staged", *more), source=source)
    with transaction(database) as connection:
        streams = both_ways(place, connection, orders(plan, (3, "inline", *more)))
        result = upsert(connection, plan, streams)
    assert result == (3, 3)
    assert table(database) == [(1, "staged"), (2, "staged"), (3, "inline")]


def test_key_in_a_stream_and_among_staged_rows_is_twice_in_the_batch(database: str, place: Staging) -> None:
    create(database, ORDERS, keys=["id"])
    plan = plan_of(database, keys=["id"])
    stage(place, plan, (1, "staged"), (5, "staged"))
    with pytest.raises(DuplicateKeyError, match="with id=5;"), transaction(database) as connection:
        upsert(connection, plan, both_ways(place, connection, orders(plan, (5, "inline"))))


def both_ways(place: Staging, connection: sa.Connection, inline: list[bytes]) -> Iterator[Any]:
    yield inline
    yield from place.staged(connection).arrived()
