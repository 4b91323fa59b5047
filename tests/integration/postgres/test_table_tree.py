"""C16, C17: what the target is, asked in each batch; conflict rules; and that as many rows arrive as were given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import psycopg2.errors
import pytest
import sqlalchemy as sa
from pyspark.sql import types as t

from spark_2pc_sink.errors import ConfigurationError, ConstraintError, DuplicateKeyError
from spark_2pc_sink.options import Rows
from spark_2pc_sink.options.names import TableName
from spark_2pc_sink.sink.job.table_loader import check_condition
from spark_2pc_sink.sink.report import WrittenRows
from spark_2pc_sink.sink.rows.catalog import read_target, read_tree, utf8_connection
from spark_2pc_sink.sink.rows.column_plan import ColumnPlan
from tests.harness.remedies import sql_in
from tests.integration.postgres.database_tables import (
    create,
    keyed,
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
        read_target(connection, Rows("orders", mode="upsert" if keys else "append", keys=keys))
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
    with transaction(database) as connection, utf8_connection(connection).cursor() as cursor:
        tree = read_tree(cursor, TableName("orders", "public"), lock=True)
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


VERSIONS = {"id": LONG, "version": LONG, "note": t.StringType()}
IGNORE: dict[str, Any] = {"mode": "insert_ignore"}
NEWER = {"upsert_where": "orders.version < EXCLUDED.version  -- the table's own name"}


def versions(url: str, *values: tuple[Any, ...], **planned: Any) -> WrittenRows:
    """Write rows of `VERSIONS`; behind them come the order and whether they delete."""
    return put(url, plan_of(url, VERSIONS, keys=["id"], **planned), *values)


def test_a_column_that_is_always_an_identity_is_written(database: str) -> None:
    """By COPY and by key; PostgreSQL updates none, and the remedy of the refusal works."""
    run(
        database,
        """CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, item text UNIQUE,
           twice bigint GENERATED ALWAYS AS (id * 2) STORED)""",
    )
    put(database, plan_of(database), (7, "a"))
    for options in ({}, IGNORE):
        put(database, plan_of(database, keys=["id"], **options), (7, "b"), (8, "c"))
    put(database, plan_of(database, keys=["id"], deletes=True), (8, None, True), (9, "d", False))
    assert table(database) == [(7, "b", 14), (9, "d", 18)]

    with pytest.raises(ConfigurationError, match="but not update it") as caught:
        plan_of(database, keys=["item"])
    run(database, caught.value.remedy.removeprefix("have the owner run: "))
    put(database, plan_of(database, keys=["item"]), (5, "b"))
    assert rows(database, "SELECT id FROM orders WHERE item = 'b'") == [(5,)]


# --- insert_ignore ---------------------------------------------------------------------------------------------------


def test_a_row_that_is_there_stays(database: str) -> None:
    plan = keyed(database, **IGNORE)
    assert put(database, plan, (1, "a"), (2, "b")) == WrittenRows(given=2, written=2)
    assert put(database, plan, (2, "B"), (3, "c")) == WrittenRows(given=2, written=1, left_out=1)
    assert table(database) == [(1, "a"), (2, "b"), (3, "c")]


def test_equal_rows_of_a_batch_are_one_and_others_need_an_order(database: str) -> None:
    plan = keyed(database, **IGNORE)
    done = put(database, plan, (1, "a"), (1, "a"), (2, None), (2, None))
    assert done == WrittenRows(given=4, written=2, left_out=2)
    with pytest.raises(DuplicateKeyError, match="with id=3;"):
        put(database, plan, (1, "x"), (3, "a"), (3, "b"))
    ordered = plan_of(database, keys=["id"], order=LONG, **IGNORE)
    assert put(database, ordered, (3, "a", 1), (3, "b", 2)) == WrittenRows(given=2, written=1, left_out=1)
    assert table(database) == [(1, "a"), (2, None), (3, "b")]


def test_a_row_that_a_trigger_swallows_is_not_taken_for_one_that_was_there(database: str) -> None:
    plan = keyed(database, **IGNORE)
    put(database, plan, (1, "a"))
    trigger(database, "BEFORE INSERT ON orders FOR EACH ROW WHEN (NEW.id = 2)", "RETURN NULL;")
    assert put(database, plan, (1, "x"), (3, "c")) == WrittenRows(given=2, written=1, left_out=1)
    with pytest.raises(ConstraintError, match="2 rows were written and 1 arrived: a trigger"):
        put(database, plan, (1, "x"), (2, "b"))


# --- update_columns --------------------------------------------------------------------------------------------------


def test_only_some_columns_are_updated(database: str) -> None:
    create(database, VERSIONS, keys=["id"])
    versions(database, (1, 1, "first"), update_columns=["version"])
    done = versions(database, (1, 2, "second"), (2, 1, "new"), update_columns=["version"])
    assert done == WrittenRows(given=2, written=2)
    assert table(database) == [(1, 2, "first"), (2, 1, "new")]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"update_columns": ["nte"]}, "update_columns=.*not among the columns"),
        ({"update_columns": ["id"]}, "update_columns=.*an upsert key"),
        ({"unchanged_when": {"nte": "true"}}, "unchanged_when=.*not among the columns"),
        (
            {"update_columns": ["note"], "late_rows": "keep_newer"},
            "update_columns=.*late rows are detected by column 'version'",
        ),
    ],
)
def test_columns_that_options_cannot_name(database: str, options: dict[str, Any], said: str) -> None:
    create(database, VERSIONS, keys=["id"])
    plan_of(database, VERSIONS, keys=["id"], order=LONG, update_columns=["note"])
    with pytest.raises(ConfigurationError, match=said):
        plan_of(database, VERSIONS, keys=["id"], order=LONG, **options)


# --- unchanged_when --------------------------------------------------------------------------------------------------

LACKING = {"unchanged_when": {"version": "v = '-'", "note": "n = '-'"}}


def test_a_row_without_a_value_keeps_the_newest(database: str) -> None:
    """That of the table, or of an older row of its batch; NOT NULL and domains hold for what is written."""
    run(
        database,
        "CREATE DOMAIN word AS text NOT NULL CHECK (VALUE <> '')",
        "CREATE TABLE orders (id bigint PRIMARY KEY, version bigint NOT NULL, note word) PARTITION BY RANGE (id)",
        "CREATE TABLE part PARTITION OF orders DEFAULT",
    )
    given: Mapping[str, Any] = {**LACKING, "order": LONG, "deletes": True}
    versions(database, *((number, 1, "a", 1, False, "00") for number in (1, 2, 3, 4)), **given)
    done = versions(
        database,
        (1, None, "A", 2, False, "10"),
        *[(2, 5, None, 2, False, "01"), (2, None, "B", 3, False, "10"), (2, None, None, 4, False, "11")],
        *[(3, None, None, 2, False, "11"), (3, None, None, 3, True, "00")],
        *[(5, 1, "e", 1, False, "00"), (5, None, None, 2, True, "00"), (5, None, None, 3, False, "11")],
        **given,
    )
    assert done == WrittenRows(given=9, written=3, deleted=1, left_out=5)
    assert table(database) == [(1, 1, "A"), (2, 5, "B"), (4, 1, "a"), (5, 1, "e")]
    with pytest.raises(ConstraintError, match="23502"):
        versions(database, (6, None, "f", 1, False, "00"), **given)


# --- upsert_where ----------------------------------------------------------------------------------------------------


def test_a_condition_says_which_rows_are_updated(database: str) -> None:
    create(database, VERSIONS, keys=["id"])
    versions(database, (1, 5, "a"), (2, 5, "b"), (3, None, "c"), **NEWER)
    done = versions(database, (1, 6, "A"), (2, 4, "B"), (3, 1, "C"), (4, None, "d"), **NEWER)
    assert done == WrittenRows(given=4, written=2, left_out=2)
    assert table(database) == [(1, 6, "A"), (2, 5, "b"), (3, None, "c"), (4, None, "d")]


def test_a_key_twice_is_refused_although_the_condition_would_hide_it(database: str) -> None:
    create(database, VERSIONS, keys=["id"])
    versions(database, (1, 5, "a"), **NEWER)
    with pytest.raises(DuplicateKeyError, match="with id=1;"):
        versions(database, (1, 3, "x"), (1, 4, "y"), **NEWER)


@pytest.mark.parametrize(("before", "key"), [("INSERT", 9), ("UPDATE", 2)])
def test_a_row_that_a_trigger_swallows_is_not_taken_for_one_that_the_condition_keeps_out(
    database: str, before: str, key: int
) -> None:
    create(database, VERSIONS, keys=["id"])
    versions(database, (1, 5, "a"), (2, 5, "b"), **NEWER)
    trigger(database, f"BEFORE {before} ON orders FOR EACH ROW WHEN (NEW.note = 'skip')", "RETURN NULL;")
    done = versions(database, (1, 4, "A"), (2, 6, "B"), (3, 1, "c"), **NEWER)
    assert done == WrittenRows(given=3, written=2, left_out=1)
    with pytest.raises(ConstraintError, match="1 rows were written and 0 arrived: a trigger"):
        versions(database, (1, 4, "A"), (key, 7, "skip"), **NEWER)


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("orders.version <", "syntax error"),
        ("EXCLUDED.version", "must be type boolean"),
        ("true); DELETE FROM orders; SELECT (true", "single condition"),
    ],
)
def test_a_condition_that_is_none(database: str, where: str, said: str) -> None:
    create(database, VERSIONS, keys=["id"])
    run(database, "INSERT INTO orders VALUES (1)")
    plan = plan_of(database, VERSIONS, keys=["id"], upsert_where=where)
    with pytest.raises(ConfigurationError, match=f"upsert_where=.*{said}"), transaction(database) as connection:
        check_condition(connection, plan)
    assert rows(database, "SELECT id FROM orders") == [(1,)]
