"""What the catalog says of a target table, and the table that a batch's schema makes."""

from __future__ import annotations

import pickle
import secrets
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa
from pyspark.sql import types as t

from spark_2pc_sink.errors import ConfigurationError, ConstraintError
from spark_2pc_sink.options import Rows
from spark_2pc_sink.sink.job.table_loader import check_privileges
from spark_2pc_sink.sink.rows.catalog import TargetTable, read_target
from spark_2pc_sink.sink.rows.column_plan import (
    ColumnPlan,
    add_columns,
    create_table_ddl,
    missing_columns,
    plan_columns,
)
from spark_2pc_sink.sink.rows.value_checks import DecimalRange, TextLength, WholeMultiple
from tests.harness.providers import Database
from tests.integration.postgres import database_tables as tables


def target_of(url: str, name: str = "orders") -> TargetTable:
    with tables.transaction(url) as connection:
        return read_target(connection, Rows(name))


def test_domains_are_what_is_below_them(database: str) -> None:
    tables.run(
        database,
        "CREATE DOMAIN money_2 AS numeric(10,2) DEFAULT 0",
        "CREATE DOMAIN price AS money_2 NOT NULL CHECK (VALUE > 0)",
        "CREATE DOMAIN codes AS varchar(3)[]",
        "CREATE TABLE orders (p price, c codes, ps price[])",
    )
    price, codes, prices = target_of(database).columns
    assert (price.base_type, price.precision_and_scale) == ("numeric", (10, 2))
    assert (price.type_name, price.nullable, price.has_default) == ("price", False, True)
    assert (codes.base_type, codes.is_array, codes.element_oid, codes.characters_max) == ("varchar", True, 1043, 3)
    assert prices.base_type == "", "an array names the domain as its element type, which no encoder does"


def test_unique_keys_that_on_conflict_can_use(database: str) -> None:
    tables.run(
        database,
        "CREATE TABLE orders (a int, b int, c int, d int, PRIMARY KEY (c, a))",
        "CREATE UNIQUE INDEX one ON orders (b) INCLUDE (d)",
        "CREATE UNIQUE INDEX partial ON orders (a) WHERE b > 0",
        "CREATE UNIQUE INDEX expression ON orders (abs(d))",
        "CREATE INDEX plain ON orders (d)",
        "ALTER TABLE orders ADD CONSTRAINT later UNIQUE (d) DEFERRABLE",
    )
    target = target_of(database)
    assert target.unique_keys == (("c", "a"), ("b",))
    assert pickle.loads(pickle.dumps(target)) == target  # noqa: S301 - our own bytes


def test_missing_table_is_refused_with_what_to_do(database: str) -> None:
    no_table, no_schema = r"there is no such table .*create_table=True", 'CREATE SCHEMA "nowhere"'
    for missing, said in (("orders", no_table), ("public.orders", no_table), ("nowhere.orders", no_schema)):
        with pytest.raises(ConfigurationError, match=said) as caught:
            target_of(database, missing)
        assert caught.value.value == missing


def test_table_made_from_a_schema_takes_a_batch_of_it(database: str) -> None:
    """And being made twice does no harm."""
    types: list[t.DataType] = [
        t.BooleanType(), t.ByteType(), t.ShortType(), t.IntegerType(), t.LongType(), t.FloatType(), t.DoubleType(),
        t.DecimalType(38, 18), t.StringType(), t.BinaryType(), t.DateType(), t.TimestampType(), t.TimestampNTZType(),
        t.TimeType(), t.DayTimeIntervalType(), t.VariantType(), t.MapType(t.StringType(), t.LongType()),
        t.StructType([t.StructField("a", t.TimestampType())]), t.ArrayType(t.ArrayType(t.LongType())),
    ]  # fmt: skip
    types += [t.ArrayType(scalar) for scalar in types[:15]]
    fields = {f'column "{number}"': spark_type for number, spark_type in enumerate(types)}
    ddl = create_table_ddl([t.StructField(*field) for field in fields.items()], "orders", upsert_keys=['column "3"'])
    tables.run(database, ddl, ddl)
    target = target_of(database)
    plan = plan_columns(list(fields.items()), target, Rows("orders", mode="upsert", keys=['column "3"']))
    assert plan.names == tuple(fields)
    assert target.unique_keys == (('column "3"',),)
    checks = [type(check) for column in plan.columns for check in column.storage.checks]
    assert not {TextLength, DecimalRange, WholeMultiple} & set(checks), "a table of our own making holds every value"


@pytest.fixture
def latin1_database(postgres: Database) -> Iterator[str]:
    """The URL of a database whose own encoding is LATIN1."""
    name = f"latin1_{secrets.token_hex(4)}"
    engine = sa.create_engine(postgres.url, poolclass=sa.NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING LATIN1 LOCALE 'C'")
    yield postgres.database_url(name)
    postgres.drop_database(name)


def test_connection_in_another_encoding_is_refused(latin1_database: str) -> None:
    """psycopg2 adopts the server's encoding: the two bytes of 'ü' would be stored as two letters, without an error."""
    converting = f"{latin1_database}?client_encoding=utf8"
    tables.create(converting, tables.ORDERS)
    with pytest.raises(ConfigurationError, match="client_encoding=utf8") as caught:
        target_of(latin1_database)
    assert "this one uses LATIN1" in str(caught.value)

    plan = tables.plan_of(converting)
    tables.put(converting, plan, (1, "ü"))
    assert tables.rows(converting, "SELECT item, octet_length(item) FROM orders") == [("ü", 1)]
    with pytest.raises(ConstraintError, match="no equivalent in encoding"):
        tables.put(converting, plan, (2, "€"))


#: A collation that ignores case.
LOOSE = "CREATE COLLATION loose (provider = icu, locale = 'und-u-ks-level2', deterministic = false)"


# The server of the wheel was built without ICU, that of the containers' image has it.
@pytest.mark.containers
@pytest.mark.parametrize(("of_column", "of_index"), [("loose", '"C"'), ('"C"', '"POSIX"')])
def test_a_key_compares_text_as_its_column_does(database: str, of_column: str, of_index: str) -> None:
    """Else two keys of a batch would be one for the index, or one key two."""
    tables.run(
        database,
        LOOSE,
        f"CREATE TABLE orders (id bigint, item text COLLATE {of_column})",
        f"CREATE UNIQUE INDEX of_item ON orders (item COLLATE {of_index})",
    )
    if "loose" in (of_column, of_index) and of_column != of_index:
        with pytest.raises(ConfigurationError, match="nor do those with another collation than the column"):
            tables.plan_of(database, keys=["item"])
    else:
        assert tables.plan_of(database, keys=["item"]).upsert_keys == ("item",)


# --- what the role may do ------------------------------------------------------------------------------------------


@pytest.fixture
def role(database: str) -> Iterator[str]:
    """A role without any right in a database that gives none to everybody; its name, which is its password, too."""
    name = f"role_{secrets.token_hex(4)}"
    named = sa.make_url(database).database
    tables.run(
        database, f"CREATE ROLE {name} LOGIN PASSWORD '{name}'", f'REVOKE TEMPORARY ON DATABASE "{named}" FROM PUBLIC'
    )
    yield name
    tables.run(database, f"DROP OWNED BY {name}", f"DROP ROLE {name}")


def url_of(role: str, database: str) -> str:
    return sa.make_url(database).set(username=role, password=role).render_as_string(hide_password=False)


def refused_rights(role: str, database: str, plan: ColumnPlan) -> ConfigurationError | None:
    with tables.transaction(url_of(role, database)) as connection:
        try:
            check_privileges(connection, plan)
        except ConfigurationError as error:
            return error
    return None


@pytest.mark.parametrize(
    ("keys", "kind", "missing"),
    [
        ([], "text", "INSERT,"),
        ([], "interval", "INSERT and TEMPORARY on the database,"),
        (["id"], "text", "INSERT and SELECT and UPDATE and DELETE and TEMPORARY on the database,"),
    ],
    ids=["append", "append of casts", "upsert"],
)
def test_a_role_without_rights_is_told_what_to_grant_it(
    database: str, role: str, keys: list[str], kind: str, missing: str
) -> None:
    """The GRANTs of the message are all that a batch needs."""
    tables.run(database, f"CREATE TABLE orders (id bigint PRIMARY KEY, item {kind})")
    plan = tables.plan_of(database, keys=keys, deletes=bool(keys))
    error = refused_rights(role, database, plan)
    assert error is not None
    assert f"role '{role}' lacks {missing}" in error.rule
    tables.run(database, *error.remedy.removeprefix("have the owner run: ").split("; "))
    assert refused_rights(role, database, plan) is None
    tables.put(url_of(role, database), plan, (1, "1 day", *[False] * bool(keys)))
    assert tables.rows(database, "SELECT id, item::text FROM orders") == [(1, "1 day")]


def test_a_role_under_row_level_security_is_refused_where_copy_would_be(database: str, role: str) -> None:
    """Either remedy helps: rows of an upsert are inserted, which the policies allow; or none applies to the role."""
    tables.create(database, tables.ORDERS, keys=["id"])
    named = sa.make_url(database).database
    tables.run(
        database,
        "ALTER TABLE orders ENABLE ROW LEVEL SECURITY",
        "CREATE POLICY all_rows ON orders USING (true) WITH CHECK (true)",
        f"GRANT ALL ON orders TO {role}",
        f'GRANT TEMPORARY ON DATABASE "{named}" TO {role}',
    )
    appending, upserting = tables.plan_of(database), tables.plan_of(database, keys=["id"])
    error = refused_rights(role, database, appending)
    assert error is not None
    assert f"row-level security applies to role '{role}'" in error.rule
    assert refused_rights(role, database, upserting) is None
    tables.run(database, error.remedy.removeprefix("have an administrator run: ").partition(";")[0])
    assert refused_rights(role, database, appending) is None


# --- columns that a batch has and the table lacks ------------------------------------------------------------------

MORE = t.StructType(
    [
        t.StructField("id", t.LongType()),
        t.StructField("ITEM", t.StringType()),
        t.StructField("at", t.TimestampType(), nullable=False),
        t.StructField("total %s", t.DecimalType(12, 2)),
        t.StructField("lines", t.ArrayType(t.StructType([t.StructField("sku", t.StringType())]))),
        t.StructField("tags", t.ArrayType(t.StringType())),
    ]
).fields


ADDED = [
    ("at", "timestamp with time zone", True),
    ("total %s", "numeric(12,2)", True),
    ("lines", "jsonb", True),
    ("tags", "text[]", True),
]


def test_two_sinks_may_add_them_at_one_time(database: str) -> None:
    """Both have looked before either has added anything. They have the types of a table that the sink creates.

    Nullable, as earlier rows lack them; and none that differs by nothing but case.
    """
    tables.create(database, tables.ORDERS, keys=["id"])
    tables.run(database, "INSERT INTO orders VALUES (1, 'a')")
    looked = threading.Barrier(2, timeout=20)

    def add() -> None:
        with tables.transaction(database) as connection:
            target = read_target(connection, Rows("orders"))
            missing = missing_columns(MORE, target)
        looked.wait()
        with tables.transaction(database) as connection:
            add_columns(connection, missing, target)

    with ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(add) for _ in range(2)]:
            done.result(30)
    columns = target_of(database).columns[2:]
    assert [(each.name, each.type_name, each.nullable) for each in columns] == ADDED
    assert tables.table(database) == [(1, "a", None, None, None, None)]
