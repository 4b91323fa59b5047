"""Errors about columns: what each tells to do is done as it is printed, until the batch is written."""

from __future__ import annotations

import ast
import copy
import re
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

import pytest

from spark_2pc_sink.errors import ConfigurationError
from tests.harness.remedies import columns_in, sql_in
from tests.integration.postgres.database_tables import rows, run
from tests.integration.sink.targets import Target

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from spark_2pc_sink import DualWriteSink

#: A refusal may lead to another one, such as that of a column that was added and is not a key yet.
STEPS_MAX: Final = 4
#: One in so many cases, with every kind of column, is enough for a change; the others are thorough.
OF: Final = 9
#: The table "the Orders" with the column "the X", in each way in which a table has one. {type} is its type.
KINDS: Final = {
    "plain": 'CREATE TABLE "the Orders" (id bigint, "the X" {type})',
    "not null": 'CREATE TABLE "the Orders" (id bigint, "the X" {type} NOT NULL)',
    "default": 'CREATE TABLE "the Orders" (id bigint, "the X" {type} DEFAULT {value})',
    "unique": 'CREATE TABLE "the Orders" (id bigint, "the X" {type} UNIQUE)',
    "domain": 'CREATE DOMAIN "the D" AS {type} DEFAULT {value}; CREATE TABLE "the Orders" (id bigint, "the X" "the D")',
    "partitioned": 'CREATE TABLE "the Orders" (id bigint, "the X" {type}) PARTITION BY RANGE (id);'
    'CREATE TABLE part PARTITION OF "the Orders" DEFAULT',
    "partition key": 'CREATE TABLE "the Orders" (id bigint, "the X" {type}) PARTITION BY LIST ("the X");'
    'CREATE TABLE part PARTITION OF "the Orders" DEFAULT',
    "partition expression": 'CREATE TABLE "the Orders" (id bigint, "the X" {type}) '
    'PARTITION BY RANGE ((id + 1)); CREATE TABLE part PARTITION OF "the Orders" DEFAULT',
    "generated from": 'CREATE TABLE "the Orders" (id bigint, "the X" {type}, '
    'no boolean GENERATED ALWAYS AS ("the X" IS NULL) STORED)',
    "viewed": 'CREATE TABLE "the Orders" (id bigint, "the X" {type});CREATE VIEW v AS SELECT "the X" FROM "the Orders"',
    "checked": 'CREATE TABLE "the Orders" (id bigint, "the X" {type} CHECK ("the X" > {value} OR id IS NOT NULL))',
    "indexed expression": 'CREATE TABLE "the Orders" (id bigint, "the X" {type});'
    'CREATE INDEX ON "the Orders" (coalesce("the X", {value}))',
    "referring": "CREATE TABLE other (k {type} PRIMARY KEY); INSERT INTO other VALUES ({value});"
    'CREATE TABLE "the Orders" (id bigint, "the X" {type} REFERENCES other)',
    "triggering": 'CREATE TABLE "the Orders" (id bigint, "the X" {type});'
    "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$;"
    'CREATE TRIGGER t BEFORE UPDATE ON "the Orders" FOR EACH ROW WHEN (NEW."the X" IS NULL) EXECUTE FUNCTION f()',
}
IDENTITIES: Final = {
    "identity": 'CREATE TABLE "the Orders" (id bigint, "the X" {type} GENERATED ALWAYS AS IDENTITY)',
    "serial": 'CREATE TABLE "the Orders" (id bigint, "the X" serial)',
    "identity of a partition": 'CREATE TABLE whole (id bigint, "the X" {type} GENERATED ALWAYS AS IDENTITY) '
    'PARTITION BY RANGE (id); CREATE TABLE "the Orders" PARTITION OF whole DEFAULT',
    "generated": 'CREATE TABLE "the Orders" (id bigint, "the X" {type} GENERATED ALWAYS AS (id::int) STORED)',
}
COLLATED: Final = {
    "collated": 'CREATE TABLE "the Orders" (id bigint, "the X" {type} COLLATE "C")',
    "collated index": 'CREATE TABLE "the Orders" (id bigint, "the X" {type});'
    'CREATE UNIQUE INDEX ON "the Orders" ("the X" COLLATE "POSIX")',
    "collated partition key": 'CREATE TABLE "the Orders" (id bigint, "the X" {type} COLLATE "C") '
    'PARTITION BY LIST ("the X"); CREATE TABLE part PARTITION OF "the Orders" DEFAULT',
}
UPSERT_BY_ID: Final = {"mode": "upsert", "upsert_keys": ["id"]}
#: What a batch has for "the X", its type in the table, a value of this type, and options.
VALUES: Final[dict[str, tuple[str, str, str, dict[str, Any]]]] = {
    "double": ("7.0D", "integer", "7", {}),
    "interval": ("interval '0 01:02:00' day to second", "interval hour to minute", "'1:02'", {}),
    "no column": ("7", "integer", "7", {"columns": {"id": "id", "the other X": "`the X`"}}),
    "order": (
        "'a'", "char(5)", "'a'", {**UPSERT_BY_ID, "upsert_order_by": "`the X`", "upsert_late_rows": "keep_newer"}
    ),
    "map": ("named_struct('the M', array(map(date'2024-01-01', 1)))", "jsonb", "'{}'", {}),
    "key": ("7", "integer", "7", {"mode": "upsert", "upsert_keys": ["the X"]}),
    "struct for text": ("named_struct('a', 1)", "varchar(60)", "'{\"a\":1}'", {}),
    "key of json": ("'[1]'", "json", "'[2]'", {"mode": "upsert", "upsert_keys": ["the X"]}),
    "updated": ("7", "integer", "7", UPSERT_BY_ID),
}  # fmt: skip
#: PostgreSQL does not make these tables: their types cannot be compared, or "the X" is no whole number.
_COMPARED: Final = ("unique", "partition key", "checked", "indexed expression", "referring")
#: What ends with a sentence, which names no statement.
_CHOOSE: Final = "choose other upsert_keys"
ENDS: Final = {
    "key": {"partition expression": "pass mode='append'", "generated": "and of upsert_keys"},
    "key of json": dict.fromkeys(("generated from", "viewed", "triggering"), _CHOOSE),
}
ENDS["key of json"] |= ENDS["key"]


def cases() -> list[Any]:
    """Each value with each kind of column that can have it."""
    found = []
    every = [*KINDS, *IDENTITIES, *COLLATED]
    for number, (value, (_, kind, _, options)) in enumerate(VALUES.items()):
        kinds = [*KINDS, *(IDENTITIES if kind == "integer" else ())]
        kinds += COLLATED if kind.partition("(")[0] in ("text", "varchar", "char") else ()
        if kind == "json":
            kinds = [name for name in kinds if name not in _COMPARED]
        if kind == "jsonb":
            kinds.remove("referring")
        if options.get("upsert_keys") == ["id"]:
            kinds = [name for name in kinds if "partition key" not in name and name != "partition expression"]
        for name in kinds:
            marks = pytest.mark.thorough if (number + every.index(name)) % OF else ()
            found.append(pytest.param(value, name, id=f"{value}-{name}", marks=marks))
    return found


_KEYS: Final = re.compile(r"upsert_keys=(\[[^\]]*\])")


def carry_out(refused: ConfigurationError, options: dict[str, Any], database: str) -> None:
    """Do what the error says."""
    statements, columns, keys = sql_in(refused.remedy), columns_in(refused.remedy), _KEYS.search(refused.remedy)
    leave_out = "leave it out" in refused.remedy or (
        refused.option == "columns" and columns and refused.value not in columns
    )
    assert statements or columns or keys or leave_out, refused
    run(database, *statements)
    if leave_out:
        del options["columns"][refused.value]
    options["columns"] |= columns
    if keys is not None:
        options["upsert_keys"] = ast.literal_eval(keys[1])


def refusal(sink: DualWriteSink, batch: DataFrame) -> ConfigurationError | None:
    with closing(sink):
        try:
            sink.write(batch, batch_id=0)
        except ConfigurationError as error:
            return error
    return None


@pytest.mark.parametrize(("value", "kind"), cases())
def test_what_an_error_about_a_column_prints_mends_it(
    value: str, kind: str, target: Target, spark: SparkSession
) -> None:
    """C8."""
    expression, sql_type, of_type, given = VALUES[value]
    run(target.database, {**KINDS, **IDENTITIES, **COLLATED}[kind].format(type=sql_type, value=of_type))
    if given.get("upsert_keys") == ["id"]:
        run(target.database, 'CREATE UNIQUE INDEX ON "the Orders" (id)')
    batch = spark.sql(f"SELECT 1L AS id, {expression} AS `the X`")
    columns = {"id": "id", "the X": "`the X`"}
    options = {"table": '"the Orders"', "create_table": False, **copy.deepcopy({"columns": columns, **given})}
    end = ENDS.get(value, {}).get(kind)
    refused = refusal(target.sink(**options, value="'v'"), batch)
    for _ in range(STEPS_MAX):
        if refused is None or (end is not None and end in refused.remedy):
            break
        carry_out(refused, options, target.database)
        refused = refusal(target.sink(**options, value="'v'"), batch)
    if end is not None:
        assert refused is not None, "a batch is written after all"
        return
    assert refused is None
    column = [name for name in options["columns"] if name != "id"][-1:] or ["id"]
    assert rows(target.database, f'SELECT count("{column[0]}") FROM "the Orders"') == [(1,)]
