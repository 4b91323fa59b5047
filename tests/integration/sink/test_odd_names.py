"""Names that only quotes allow, in all that the sink touches: tables, schemas, columns, dead letters."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.types import DoubleType, IntegerType, LongType, StringType, StructField, StructType, TimestampType
from sqlalchemy import NullPool, create_engine

from tests.harness.column_names import column_kinds, row_of
from tests.harness.sql import run_sql
from tests.harness.streams import FileStream

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.integration.sink.targets import Target

#: What means something to psycopg2, to SQLAlchemy, to LIKE, to format strings, to Spark, or to SQL.
ODD = "%s %(n)s 5%% :n {0} \\ \" ' ` . é"
KEY, NAME, AMOUNT = (f"{number} {ODD}" for number in range(3))
SCHEMA = StructType([StructField(KEY, LongType()), StructField(NAME, StringType()), StructField(AMOUNT, IntegerType())])


def sql(*names: str) -> str:
    """A name as the options and PostgreSQL take it."""
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


def test_every_name_is_odd(spark: SparkSession, tmp_path: Path, target: Target) -> None:
    """C16: what is read as something else than a name would be another table's."""
    options: dict[str, Any] = {
        "key": "`" + KEY.replace("`", "``") + "`",
        "table": sql(f"target {ODD}", f"t {ODD}"),
        "create_table": True,
        "state_schema": sql(f"state {ODD}"),
        "state_table": sql(f"s {ODD}"),
        "bad_rows": "dead_letter",
        "mode": "upsert",
        "upsert_keys": [KEY],
    }
    engine = create_engine(target.database, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:

        def run(statement: str) -> Any:
            return connection.exec_driver_sql(statement, execution_options={"no_parameters": True})

        run(f"CREATE SCHEMA {sql(f'target {ODD}')}")
        stream = FileStream(spark, tmp_path, SCHEMA)
        stream.add([(1, "one", 1), (2, "two", 2)])
        stream.run(target.sink(**options))
        run(f"ALTER TABLE {options['table']} ADD CHECK ({sql(AMOUNT)} < 100)")
        stream.add([(3, "three", 3), (4, "bad", 400)], partitions=2)
        stream.run(target.sink(**options))
        assert run(f"SELECT * FROM {options['table']} ORDER BY 1").all() == [
            (1, "one", 1),
            (2, "two", 2),
            (3, "three", 3),
        ]
        letters = run(f"SELECT row FROM {sql(f'state {ODD}', f's {ODD}_dead_letters')}").scalars().all()
        assert [letter[KEY] for letter in letters] == [4]
    records = sorted((json.loads(record.value or b"") for record in target.records()), key=lambda one: one[KEY])
    assert records == [{KEY: n, NAME: text, AMOUNT: n} for n, text in enumerate(["one", "two", "three"], 1)]


COLUMN_TYPES = {
    "text": StringType(),
    "jsonb": StructType([StructField("at", StringType()), StructField("n", LongType())]),
    "bigint": LongType(),
    "timestamptz": TimestampType(),
    "double precision": DoubleType(),
}
#: Spark does not tell upper from lower case.
KINDS = dict(reversed({name.casefold(): (name, kind) for name, kind in column_kinds("jsonb").items()}.values()))
EVERY_COLUMN = StructType([StructField("id", LongType())] + [StructField(n, COLUMN_TYPES[k]) for n, k in KINDS.items()])
MODES: dict[str, dict[str, Any]] = {
    "newest": {
        "mode": "upsert",
        "upsert_keys": ["id"],
        "upsert_order_by": "`k`",
        "delete_when": "t.n = 3",
        "tombstones": True,
    },
    "lacking": {
        "mode": "upsert",
        "upsert_keys": ["id"],
        "upsert_order_by": "k",
        "unchanged_when": {"j": "t.n = 3", "there": "t.n = 3"},
    },
}


@pytest.mark.parametrize("mode", ["newest", pytest.param("lacking", marks=pytest.mark.thorough)])
def test_columns_with_the_names_of_our_own(mode: str, spark: SparkSession, tmp_path: Path, target: Target) -> None:
    """In a table that has the name of PostgreSQL's other row, of whose rows one is bad."""
    options = {"table": "excluded", "key": "id", "bad_rows": "dead_letter", **MODES[mode]}
    columns = ", ".join(f"{sql(name)} {kind}" for name, kind in KINDS.items())
    run_sql(target.database, f"CREATE TABLE excluded (id bigint PRIMARY KEY CHECK (id <> 4), {columns})")

    def row(number: int, value: int) -> tuple[Any, ...]:
        told = row_of(KINDS, number, value=value)
        told |= {name: tuple(told[name].values()) for name, kind in KINDS.items() if kind == "jsonb"}
        times = {name: datetime.fromisoformat(told[name]) for name, kind in KINDS.items() if kind == "timestamptz"}
        return tuple((told | times).values())

    stream = FileStream(spark, tmp_path, EVERY_COLUMN)
    stream.add([row(1, 1), row(2, 2), row(3, 2), row(4, 4)])
    stream.add([row(2, 1), row(3, 3), row(5, 5)])
    stream.run(target.sink(**options))
    kept = {"newest": [1, 1, 5], "lacking": [1, 1, 3, 5]}
    assert [k for (k,) in run_sql(target.database, "SELECT excluded.k FROM excluded ORDER BY id")] == kept[mode]
    report = target.verify()
    assert report.verdict == "same", str(report)
