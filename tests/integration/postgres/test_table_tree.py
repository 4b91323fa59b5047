"""C16, C17: what the target is, asked in each batch; and that as many rows arrive as were given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg2.errors
import pytest
import sqlalchemy as sa
from pyspark.sql import types as t

from spark_2pc_sink.errors import ConfigurationError, ConstraintError
from spark_2pc_sink.sink.rows.catalog import SqlTableName, driver_connection, read_target, read_tree
from spark_2pc_sink.sink.rows.column_plan import ColumnPlan
from tests.harness.remedies import sql_in
from tests.integration.postgres.database_tables import (
    orders,
    plan_of,
    put,
    rows,
    run,
    table,
    transaction,
    trigger,
    write,
)

LONG = t.LongType()
KEYED = "CREATE TABLE orders (id bigint PRIMARY KEY, item text)"
KEYS_ONLY = "CREATE TABLE orders (id bigint, item text, PRIMARY KEY (id, item))"
PARTITIONED = (
    "CREATE TABLE orders (id bigint PRIMARY KEY, item text) PARTITION BY RANGE (id)",
    "CREATE TABLE low PARTITION OF orders FOR VALUES FROM (0) TO (10)",
)
#: A foreign table has no unique key, so neither may the others.
WITHOUT_KEY = tuple(statement.replace(" PRIMARY KEY", "") for statement in PARTITIONED)
#: A server of another kind, which nobody has to reach.
FOREIGN = ("CREATE FOREIGN DATA WRAPPER far", "CREATE SERVER away FOREIGN DATA WRAPPER far")
HIGH = "FOR VALUES FROM (10) TO (20)"
GUARD = "CREATE RULE guard AS ON INSERT TO orders WHERE NEW.id = 2 DO INSTEAD NOTHING"

#: How a batch is written -> the table, the keys, and whether it has an order.
WAYS: dict[str, tuple[str, list[str], bool]] = {
    "append": (KEYED, [], False),
    "upsert by order": (KEYED, ["id"], True),
    "keys only": (KEYS_ONLY, ["id", "item"], False),
}


#: Writes a batch into the table, by the plan that was made for it as it was.
Way = Callable[..., None]


def writing(url: str, keys: list[str], *, ordered: bool = False) -> Way:
    plan = plan_of(url, keys=keys, order=LONG if ordered else None)

    def write_batch(*values: tuple[Any, ...]) -> None:
        put(url, plan, *((*value, *[1] * ordered) for value in values))

    return write_batch


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, database: str) -> Way:
    statement, keys, ordered = WAYS[request.param]
    run(database, statement)
    return writing(database, keys, ordered=ordered)


# --- what is refused before it is written --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statements", "keys", "said"),
    [
        ((KEYED, GUARD), ["id"], "rule 'guard'"),
        (
            (
                *WITHOUT_KEY,
                *FOREIGN,
                f'CREATE TABLE "High" PARTITION OF orders {HIGH} PARTITION BY RANGE (id)',
                'CREATE FOREIGN TABLE far PARTITION OF "High" FOR VALUES FROM (15) TO (20) SERVER away',
            ),
            [],
            'ALTER TABLE "High" DETACH PARTITION far',
        ),
        (
            (
                *PARTITIONED,
                f"CREATE TABLE high PARTITION OF orders {HIGH} PARTITION BY RANGE (id)",
                "CREATE UNLOGGED TABLE higher PARTITION OF high FOR VALUES FROM (15) TO (20)",
            ),
            [],
            "ALTER TABLE higher SET LOGGED",
        ),
    ],
    ids=["rule for INSERT", "foreign partition of a partition", "unlogged partition of a partition"],
)
def test_a_target_that_may_lose_rows_is_refused_by_name(
    database: str, statements: tuple[str, ...], keys: list[str], said: str
) -> None:
    """C16: they can be run as they stand; then a batch is written."""
    run(database, *statements)
    with transaction(database) as connection, pytest.raises(ConfigurationError) as caught:
        read_target(connection, "orders", upsert=bool(keys))
    assert said in str(caught.value)
    run(database, *sql_in(caught.value.remedy))
    put(database, plan_of(database, keys=keys), (1, "a"))


# --- what changes between two batches, and within one --------------------------------------------------------------

VIEW = (
    "ALTER TABLE orders RENAME TO old",
    "CREATE VIEW orders AS SELECT * FROM old",
    "CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$",
    "CREATE TRIGGER instead INSTEAD OF INSERT ON orders FOR EACH ROW EXECUTE FUNCTION nothing()",
)


@pytest.mark.parametrize(
    ("statements", "said"),
    [(VIEW, "it is a view"), (("ALTER TABLE orders SET UNLOGGED",), "orders is unlogged")],
    ids=["a view in its place", "unlogged"],
)
def test_a_table_that_has_become_another_is_refused_in_the_next_batch(
    database: str, way: Way, statements: tuple[str, ...], said: str
) -> None:
    """C16: it was a table when the batch was planned."""
    way((1, "a"))
    run(database, *statements)
    with pytest.raises(ConfigurationError, match=said):
        way((2, "b"))
    name = "old" if statements is VIEW else "orders"
    assert rows(database, f"SELECT id FROM {name}") == [(1,)]


def test_a_table_that_is_gone_is_named(database: str, way: Way) -> None:
    """C16: and no other one is made in its place, whatever create_table says."""
    way((1, "a"))
    run(database, "ALTER TABLE orders RENAME TO old")
    with pytest.raises(ConfigurationError, match=r"the table no longer exists: it was renamed, dropped, or moved"):
        way((2, "b"))


@pytest.mark.parametrize(("keys", "ordered"), [(["id"], True), (["id", "item"], False)], ids=["upsert", "keys only"])
def test_a_rule_that_came_later_is_refused_in_the_next_batch(database: str, keys: list[str], ordered: bool) -> None:
    """C16: it would leave out a row, and INSERT would not say so where the batch has an order, or nothing but keys."""
    run(database, KEYS_ONLY if len(keys) > 1 else KEYED)
    way = writing(database, keys, ordered=ordered)
    run(database, GUARD)
    with pytest.raises(ConfigurationError, match="its rule 'guard' rewrites inserts and updates"):
        way((1, "a"), (2, "b"))
    assert table(database) == []


@pytest.mark.parametrize(("keys", "early"), [(["id"], True), ([], False)], ids=["before the batch", "within the batch"])
def test_a_partition_that_came_later_is_looked_at(database: str, keys: list[str], early: bool) -> None:
    """C16: attaching one does not wait for the rows of a batch, so it is looked for after the last of them as well."""
    run(database, *PARTITIONED)
    plan = plan_of(database, keys=keys)

    def attach() -> None:
        run(database, "CREATE UNLOGGED TABLE high (LIKE orders)", f"ALTER TABLE orders ATTACH PARTITION high {HIGH}")

    if early:
        attach()
    with pytest.raises(ConfigurationError, match="high is unlogged"):
        put(database, plan, (1, "a"), **({} if early else {"meanwhile": attach}))
    assert table(database) == []


def test_a_partition_that_is_being_altered_holds_nobody_up(database: str) -> None:
    """C16: looking takes no lock on partitions, and rows go to the others meanwhile."""
    run(database, *PARTITIONED, f"CREATE TABLE high PARTITION OF orders {HIGH}")
    plan = plan_of(database)
    with transaction(database) as other:
        other.exec_driver_sql("LOCK TABLE high IN ACCESS EXCLUSIVE MODE")
        put(database, plan, (1, "a"))


def test_the_look_is_one_message_and_counts_every_level(database: str) -> None:
    """C16: the lock with it; partitions of partitions too."""
    run(database, *PARTITIONED, "CREATE TABLE sub PARTITION OF orders DEFAULT PARTITION BY RANGE (id)")
    run(database, "CREATE TABLE subsub PARTITION OF sub DEFAULT")
    trigger(database, "BEFORE INSERT ON subsub FOR EACH ROW", "RETURN NEW;")
    with transaction(database) as connection, driver_connection(connection).cursor() as cursor:
        tree = read_tree(cursor, SqlTableName("orders", "public"), lock=True)
        cursor.execute(
            "SELECT count(*) FROM pg_locks WHERE mode = 'RowExclusiveLock' AND relation = 'orders'::regclass"
        )
        assert cursor.fetchall() == [(1,)]
    assert (tree.partitioned, tree.triggers, tree.skipping_triggers, tree.unfit) == (True, True, True, None)


# --- one count for every way of writing ----------------------------------------------------------------------------

DELETE_TWO = "DELETE FROM orders WHERE id = 2; RETURN NULL;"


@pytest.mark.parametrize(
    ("when", "body", "kind"),
    [
        (
            "BEFORE INSERT ON orders FOR EACH ROW WHEN (NEW.id = 2)",
            "INSERT INTO elsewhere VALUES (NEW.*); RETURN NULL;",
            "TRIGGER",
        ),
        ("AFTER INSERT ON orders", DELETE_TWO, "TRIGGER"),
        ("AFTER INSERT ON orders DEFERRABLE INITIALLY DEFERRED FOR EACH ROW", DELETE_TWO, "CONSTRAINT TRIGGER"),
    ],
    ids=["put elsewhere", "deleted by statement", "deleted at the end"],
)
def test_rows_that_are_given_and_do_not_arrive_are_missed(
    database: str, way: Way, when: str, body: str, kind: str
) -> None:
    """C17: whatever a trigger does with them, and whenever it does so."""
    run(database, "CREATE TABLE elsewhere (id bigint, item text)")
    trigger(database, when, body, kind=kind)
    with pytest.raises(ConstraintError, match="3 rows were written and 2 arrived: a trigger of the table"):
        way((1, "a"), (2, "b"), (3, "c"))
    assert table(database) == []


def test_a_server_that_does_not_count_is_not_believed(database: str, way: Way) -> None:
    """C17: track_counts of the database, or of the role, is off."""
    run(database, f'ALTER DATABASE "{sa.make_url(database).database}" SET track_counts = off')
    way((1, "a"))
    trigger(database, "AFTER INSERT ON orders", "DELETE FROM orders WHERE id IN (1, 3); RETURN NULL;")
    way((2, "b"))
    with pytest.raises(ConstraintError, match="2 rows were written and 1 arrived"):
        way((3, "c"), (4, "d"))
    assert rows(database, "SELECT id FROM orders") == [(2,)]


def test_other_rows_may_be_deleted(database: str, way: Way) -> None:
    """C17: a trigger that keeps only what is new is no loss."""
    way((1, "a"))
    trigger(database, "AFTER INSERT ON orders", "DELETE FROM orders WHERE id = 1; RETURN NULL;")
    way((2, "b"), (3, "c"))
    assert rows(database, "SELECT id FROM orders ORDER BY id") == [(2,), (3,)]


def test_rows_that_a_trigger_adds_are_not_counted(database: str, way: Way) -> None:
    """C17: nor those that it changes."""
    trigger(
        database,
        "AFTER INSERT ON orders FOR EACH ROW WHEN (NEW.id < 100)",
        "INSERT INTO orders VALUES (NEW.id + 100, 'added'), (NEW.id + 200, 'added'); "
        "DELETE FROM orders WHERE id = NEW.id + 200; RETURN NULL;",
    )
    way((1, "a"), (2, "b"))
    assert rows(database, "SELECT id FROM orders ORDER BY id") == [(1,), (2,), (101,), (102,)]


# --- what PostgreSQL refuses ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", ["P0001", "23505", "42P01"])
def test_what_a_trigger_raises_is_a_refused_row(database: str, code: str) -> None:
    """C12: with whatever code; the same row would be refused again. PostgreSQL's hint is a part of the message."""
    run(database, KEYED)
    plan = plan_of(database)
    raised = f"RAISE EXCEPTION 'not on Sundays' USING ERRCODE = '{code}', HINT = 'Ask on Monday';"
    trigger(database, "BEFORE INSERT ON orders FOR EACH ROW", raised)
    with pytest.raises(ConstraintError, match="not on Sundays; Ask on Monday") as caught:
        put(database, plan, (1, "a"))
    assert caught.value.sqlstate == code


def test_a_trigger_whose_function_cannot_run_is_named(database: str, way: Way) -> None:
    """C12: no row is to blame, and PostgreSQL's message alone says neither which table nor which function."""
    body = "INSERT INTO audit VALUES (NEW.id); RETURN NEW;"
    trigger(database, "BEFORE INSERT ON orders FOR EACH ROW", body)
    said = 'relation "audit" does not exist.*PL/pgSQL function act'
    with pytest.raises(ConfigurationError, match=said) as caught:
        way((1, "a"))
    assert "correct the function that the message names" in caught.value.remedy
    assert rows(database, "SELECT id FROM orders") == []


def test_a_trigger_may_ask_for_another_attempt(database: str, way: Way) -> None:
    """C7: by the code of a serialization failure, which then means what it says."""
    trigger(
        database, "BEFORE INSERT ON orders FOR EACH ROW", "RAISE EXCEPTION 'later' USING ERRCODE = '40001'; RETURN NEW;"
    )
    with pytest.raises(psycopg2.errors.SerializationFailure):
        way((1, "a"))


def test_a_row_against_a_policy_is_refused_by_name(database: str) -> None:
    """C12: row-level security shares its code with a missing privilege, and is not one: rows that comply go in."""
    run(
        database,
        KEYED,
        "CREATE ROLE under_policy",
        "GRANT ALL ON orders TO under_policy",
        "ALTER TABLE orders ENABLE ROW LEVEL SECURITY",
        "CREATE POLICY odd ON orders USING (true) WITH CHECK (id % 2 = 1)",
    )
    inserting, copying = plan_of(database, keys=["id"]), plan_of(database)

    def as_role(plan: ColumnPlan, *values: tuple[Any, ...]) -> None:
        with transaction(database) as connection:
            connection.exec_driver_sql("SET LOCAL ROLE under_policy")
            write(connection, plan, [orders(plan, *values)])

    try:
        as_role(inserting, (1, "a"))
        with pytest.raises(ConstraintError, match="refused a row: new row violates row-level security") as caught:
            as_role(inserting, (3, "c"), (2, "b"))
        assert caught.value.sqlstate == "42501"
        with pytest.raises(ConfigurationError, match="COPY FROM not supported with row-level security"):
            as_role(copying, (5, "e"))
        run(database, "REVOKE INSERT ON orders FROM under_policy")
        with pytest.raises(ConfigurationError, match="permission denied for table orders") as missing:
            as_role(inserting, (7, "g"))
        assert "have its owner grant the missing privilege" in missing.value.remedy
        assert "state table" not in str(missing.value)
    finally:
        run(database, "DROP OWNED BY under_policy", "DROP ROLE under_policy")
    assert rows(database, "SELECT id FROM orders") == [(1,)]
