"""What tables have of their own as a place for staged rows; the rest is in `test_staging`. C10, C11, C12."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import psycopg2.errors
import pytest

from jdbc_state.connections import Database
from spark_2pc_sink.errors import BatchRetryError, DatabaseUnreachableError, LocalProtocolError
from spark_2pc_sink.options import SinkOptions
from spark_2pc_sink.sink.table.catalog import driver_connection
from spark_2pc_sink.sink.table.copy_encoder import CopyEncoder
from spark_2pc_sink.sink.table.keyed_rows import KeyedRows
from spark_2pc_sink.sink.table.table_writer import AppendedRows
from spark_2pc_sink.sink.transfer.staging_tables import (
    DROP_LOCK_TIMEOUT_MS,
    LEFTOVERS_MAX,
    LOCKED_MAX,
    SLICE_BYTES,
    DroppedStaging,
    StagingName,
    drop_ended_staging,
    staging_names,
)
from spark_2pc_sink.sink.transfer.table_loader import TableLoader
from spark_2pc_sink.testing.ports import free_port
from spark_2pc_sink.testing.wait import wait_until
from tests.integration.postgres.database_tables import ORDERS, append, create, orders, plan_of, rows, run, transaction
from tests.integration.postgres.staging_places import (
    ID,
    LARGE,
    TICKET,
    copying,
    name,
    owner,
    session,
    stage,
    table,
    tables,
    ticket,
    writing,
)
from tests.integration.state.state_stores import settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from spark_2pc_sink.sink.table.column_plan import ColumnPlan
    from tests.harness.providers import Database as Server

SESSIONS = "SELECT count(*) FROM pg_stat_activity WHERE application_name = '2pc:my sink:3'"


def stages(url: str) -> list[str]:
    names = rows(url, "SELECT tablename FROM pg_tables WHERE tablename LIKE '\\_2pc\\_stage%%' ORDER BY 1")
    return [row[0] for row in names]


@pytest.fixture
def plan(database: str) -> ColumnPlan:
    """A plan to append to a fresh table."""
    create(database, ORDERS)
    return plan_of(database)


def test_tables_stay_when_the_deciding_transaction_rolls_back(database: str, plan: ColumnPlan) -> None:
    source = stage(tables(database), plan, (1, "a"))
    with transaction(database, commit=False) as connection:
        copying(connection, plan, tables(database)).finish(connection, [source])
    assert table(database) == []
    assert stages(database) == [name()]


def test_a_table_is_unlogged_and_each_slice_of_a_part_fills_a_page(database: str, plan: ColumnPlan) -> None:
    """As one value the server would cut it itself, into four times as many, in a table of its own."""
    stage(tables(database), plan, (1, LARGE))
    slices, full = -(-len(LARGE) // SLICE_BYTES), len(LARGE) // SLICE_BYTES
    assert rows(
        database,
        f"SELECT relpersistence::text, pg_relation_size(reltoastrelid) FROM pg_class WHERE relname = '{name()}'",
    ) == [("u", 0)]
    assert rows(
        database,
        f"SELECT count(*), count(DISTINCT (ctid::text::point)[0]), sum((length(payload) = {SLICE_BYTES})::integer) "
        f"FROM {name()}",
    ) == [(slices, slices, full)]


def test_slices_are_put_together_wherever_the_server_keeps_them(database: str, plan: ColumnPlan) -> None:
    text = "".join(map(str, range(10_000)))
    source = stage(tables(database), plan, (1, text), (2, "small"))
    run(database, f"UPDATE {name()} SET task_attempt = task_attempt WHERE slice IN (0, 2)")
    assert rows(database, f"SELECT array_agg(slice ORDER BY ctid) FROM {name()}") == [([1, 3, 4, 0, 2],)]
    with transaction(database) as connection:
        copying(connection, plan, tables(database)).finish(connection, [source])
    assert table(database) == [(1, text), (2, "small")]


def test_a_part_is_put_while_the_store_is_open(database: str, plan: ColumnPlan) -> None:
    store = tables(database).store(0, 7)
    with pytest.raises(LocalProtocolError, match="between"):
        store.put(0, orders(plan, (1, "a")))


@pytest.mark.parametrize("kind", [AppendedRows, KeyedRows])
def test_crash_of_the_server_empties_staging_and_is_noticed(start_postgres: Callable[..., Any], kind: Any) -> None:
    """C10: "UNLOGGED staging is emptied by crash recovery: never commit an empty stage silently"."""
    server = start_postgres()
    url = server.create_database("crash")
    create(url, ORDERS, keys=["id"])
    plan = plan_of(url, keys=["id"])
    source = stage(tables(url), plan, (1, "a"), (2, "b"))
    server.kill()
    server.start()
    with pytest.raises(BatchRetryError, match=r"and \{\} were written"), transaction(url) as connection:
        copying(connection, plan, tables(url), kind=kind).finish(connection, [source])
    assert table(url) == []


def test_rows_of_another_attempt_are_not_seen(database: str, plan: ColumnPlan) -> None:
    """C10: neither those of an older claim, nor those of an older transaction of this one."""
    for other in (ticket(generation=2), ticket(generation=31), ticket(attempt=2), ticket(attempt=11)):
        stage(tables(database, of=other), plan, (1, "other"))
    with transaction(database) as connection:
        assert list(tables(database).staged(connection).arrived()) == []


def test_table_that_goes_while_it_is_looked_at_is_noticed(database: str, plan: ColumnPlan) -> None:
    for source in (1, 2):
        stage(tables(database), plan, (source, "a"), source=source)
    with transaction(database, commit=False) as connection:
        arrived = tables(database).staged(connection).arrived()
        next(arrived)
        run(database, f"DROP TABLE {name(source=2)}")
        with pytest.raises(BatchRetryError, match=f"{name(source=2)} of this batch is gone"):
            list(arrived)


# --- names and leftovers ---------------------------------------------------------------------------------------


def test_names_are_read_back_and_fit() -> None:
    longest = StagingName(owner(), 2**31, 2**31, 2**31)
    assert StagingName.parse(str(longest)) == longest
    assert len(str(longest)) <= 63
    for foreign in ("_2pc_stage_abc_1_1_1", "_2pc_stage_0123456789_1_1", "x_2pc_stage_0123456789_1_1_1", "orders"):
        assert StagingName.parse(foreign) is None
    assert owner("a") != owner("b")


def test_the_table_of_every_task_is_found(database: str) -> None:
    """By a range of names, in which no other attempt is."""
    tasks = [0, 1, 9, 10, 99, 2**31 - 1]
    for other in (ticket(generation=2), ticket(generation=31), ticket(attempt=11), ticket(sink="other")):
        run(database, f"CREATE TABLE {name(other)} ()")
    run(database, *(f"CREATE TABLE {name(source=task)} ()" for task in tasks), f"CREATE TABLE {name(source=9)}_9 ()")
    with transaction(database) as connection, driver_connection(connection).cursor() as cursor:
        found = staging_names(cursor, "public", name(source=0).removesuffix("0"))
        assert staging_names(cursor, "elsewhere", name(source=0).removesuffix("0")) == []
    assert sorted((one.task, one.lane) for one in found) == sorted([*((task, 0) for task in tasks), (9, 9)])


def test_only_older_leftovers_of_the_same_sink_are_dropped(database: str, plan: ColumnPlan) -> None:
    older = [ticket(generation=1), ticket(generation=2, attempt=9)]
    kept = [TICKET, ticket(generation=4), ticket(generation=1, sink="other"), ticket(generation=10)]
    for one in older + kept:
        stage(tables(database, of=one), plan, (1, "a"))
    names = {one: name(one, 0) for one in older + kept}
    look_alike = f"_2pc_stage_{owner()}_1_1_x"
    run(database, f"CREATE TABLE {look_alike} ()", "CREATE SCHEMA s", f"CREATE TABLE s.{names[older[0]]} ()")
    assert dropped(database, (3, 0)) == {names[one] for one in older}
    assert stages(database) == sorted([look_alike, names[older[0]], *(names[one] for one in kept)])
    assert dropped(database, (4, 0)) == {names[TICKET]}


def test_tables_of_an_attempt_and_of_those_before_are_dropped(database: str, plan: ColumnPlan) -> None:
    attempts = [ticket(generation=3, attempt=attempt) for attempt in (2, 9, 10)]
    for source in (0, 1):
        for one in attempts:
            stage(tables(database, of=one), plan, (1, "a"), source=source)
    assert dropped(database, (3, 9)) == {name(one, source) for one in attempts[:2] for source in (0, 1)}
    assert stages(database) == [name(attempts[2], source) for source in (0, 1)]


def test_a_table_that_somebody_reads_is_left_and_the_others_go(database: str, plan: ColumnPlan) -> None:
    """As pg_dump does with all tables of the database, for as long as it runs. C10."""
    for source in range(LOCKED_MAX + 2):
        stage(tables(database), plan, (1, "a"), source=source)
    with transaction(database) as reader:
        reader.exec_driver_sql(f"LOCK TABLE {name(source=1)} IN ACCESS SHARE MODE")
        result = drop(database, (3, 1))
        assert (len(result.dropped), result.left, stages(database)) == (LOCKED_MAX + 1, 1, [name(source=1)])
        reason = "canceling statement due to lock timeout (SQLSTATE 55P03)"
        assert result.reasons == (f'"public"."{name(source=1)}": {reason}',)
    assert dropped(database, (3, 1)) == {name(source=1)}


def test_tables_that_somebody_reads_are_waited_for_a_second_in_all(database: str, plan: ColumnPlan) -> None:
    for source in range(LOCKED_MAX + 2):
        stage(tables(database), plan, (1, "a"), source=source)
    assert DROP_LOCK_TIMEOUT_MS * LOCKED_MAX == 1_000
    with transaction(database) as reader:
        reader.exec_driver_sql(f"LOCK TABLE {', '.join(stages(database))} IN ACCESS SHARE MODE")
        begun_s = time.monotonic()
        result = drop(database, (3, 1))
        assert 1 <= time.monotonic() - begun_s < 5
    assert (result.dropped, result.left) == ((), LOCKED_MAX + 2)


def test_a_view_of_a_staging_table_keeps_it(database: str, plan: ColumnPlan) -> None:
    """Nothing is dropped that is not ours."""
    stage(tables(database), plan, (1, "a"))
    run(database, f"CREATE VIEW somebody_s AS SELECT part FROM {name()}")
    (reason,) = drop(database, (3, 1)).reasons
    assert "other objects depend on it" in reason


def test_a_database_that_is_gone_is_no_error_and_not_waited_for(
    start_postgres: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    """The batch is decided; whatever comes next finds out by itself."""
    server = start_postgres()
    url = server.create_database("shop")
    connections = Database(url, settings(connect_deadline_ms=20_000))
    loader = loader_of(loading(url), connections)
    loader.drop_staging((TICKET.generation, TICKET.transaction))
    assert caplog.text == ""
    server.kill()
    begun_s = time.monotonic()
    loader.drop_staging((TICKET.generation, TICKET.transaction))
    assert time.monotonic() - begun_s < 10
    assert "staging tables may be left, to be dropped later: dropping staging tables" in caplog.text
    connections.close()


def test_a_sink_of_the_same_id_beside_another_state_table_keeps_its_rows(database: str, plan: ColumnPlan) -> None:
    """C10: of another Kafka cluster, say. Their claims are counted apart: no generation says anything of the other."""
    connections = Database(database, settings())
    one, other = (loader_of(loading(database, state_table=name), connections) for name in ("state", "other_state"))
    under_way = ticket(generation=2)
    stage(other.staging(under_way, None), plan, (1, "a"))
    one.drop_staging((TICKET.generation, TICKET.transaction))
    with transaction(database) as connection:
        assert list(one.staging(under_way, None).staged(connection).arrived()) == []
        assert len(list(other.staging(under_way, None).staged(connection).arrived())) == 1
    connections.close()


def loader_of(options: SinkOptions, connections: Database) -> TableLoader:
    return TableLoader(options, options.lanes[0], connections)


def loading(url: str, **more: Any) -> SinkOptions:
    """Options of a sink that stages."""
    place = {"table": "public.orders", "staging_schema": "public", "database": url}
    return SinkOptions.parse(
        transactional_id=ID, topic="orders", kafka={"bootstrap.servers": "nowhere:1"}, **place, **more
    )


def drop(url: str, ended: tuple[int, int]) -> DroppedStaging:
    """Drop as the sink does."""
    connections = Database(url, settings())
    with connections.requests("test", lock_timeout_ms=DROP_LOCK_TIMEOUT_MS) as connection:
        result = drop_ended_staging(connection, schema="public", owner=owner(), ended=ended)
    connections.close()
    return result


def dropped(url: str, ended: tuple[int, int]) -> set[str]:
    """The names of what was dropped, where nothing is in the way."""
    result = drop(url, ended)
    assert (result.left, result.reasons) == (0, ())
    assert {table.schema for table in result.dropped} <= {"public"}
    return {table.name for table in result.dropped}


def test_leftovers_are_dropped_in_bounded_numbers(database: str) -> None:
    many = LEFTOVERS_MAX + 3
    run(
        database,
        f"DO $$ BEGIN FOR n IN 1..{many} LOOP EXECUTE format('CREATE TABLE _2pc_stage_{owner()}_1_1_%s ()', n);"
        " END LOOP; END $$",
    )
    counts = [len(dropped(database, (2, 0))) for _ in range(3)]
    assert counts == [LEFTOVERS_MAX, 3, 0]


# --- sessions --------------------------------------------------------------------------------------------------


def test_session_is_known_by_its_name_and_ends_with_its_task(database: str, plan: ColumnPlan) -> None:
    """C11: one short connection, and none that stays; a newer driver ends it between two parts, too."""
    with writing(tables(database)) as writer:
        assert rows(database, SESSIONS) == [(1,)]
        writer.finish(CopyEncoder(plan).finish())
    wait_until(lambda: rows(database, SESSIONS) == [(0,)], deadline_s=20, what="the end of the session")


def test_waits_of_a_session_are_bounded(database: str, plan: ColumnPlan) -> None:
    """C12: the bounds are ours, not the server's defaults, in each transaction of the session."""
    place = tables(database, lock_timeout_ms=100, statement_timeout_ms=10_000)
    with writing(place, part_bytes=1) as writer, transaction(database) as blocker:
        blocker.exec_driver_sql(f"LOCK TABLE {name()}")
        with pytest.raises(psycopg2.errors.LockNotAvailable):
            writer.write(orders(plan, (1, LARGE))[0])


def test_a_link_that_is_cut_without_a_word_is_noticed(database: str) -> None:
    """B26: a task sends by the same rules as the driver, unless the URL has others."""
    for url, idle in ((database, "10"), (f"{database}?keepalives_idle=7", "7")):
        connection = session(url).connect()
        shown = connection.info.dsn_parameters
        connection.close()
        assert {**shown, "keepalives_idle": idle, "tcp_user_timeout": "25000", "keepalives_count": "3"} == shown


def test_unreachable_database_is_said_without_the_password() -> None:
    nowhere = session(f"postgresql+psycopg2://me:secret@127.0.0.1:{free_port()}/db")
    with pytest.raises(DatabaseUnreachableError, match="refused") as caught:
        nowhere.connect()
    assert "secret" not in str(caught.value)


def test_role_needs_no_more_than_create_and_insert(postgres: Server, database: str, plan: ColumnPlan) -> None:
    """Appending reads nothing of the target."""
    run(
        database,
        "CREATE ROLE writer LOGIN PASSWORD 'pw'",
        "GRANT INSERT ON orders TO writer",
        "CREATE SCHEMA stage AUTHORIZATION writer",
    )
    address = database.rsplit("@", 1)[1]
    as_writer = f"postgresql+psycopg2://writer:pw@{address}"
    place = tables(as_writer, schema="stage")
    try:
        stage(place, plan, (1, "a"))
        with transaction(as_writer) as connection:
            assert append(connection, plan, place.staged(connection).arrived()) == 1
        assert table(database) == [(1, "a")]
    finally:
        run(database, "DROP OWNED BY writer", "DROP ROLE writer")
