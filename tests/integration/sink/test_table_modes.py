"""The modes of a table in a running sink: what becomes of rows that are there, and of tables that lack something."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import DataFrame, functions as F
from pyspark.sql.types import StringType, StructField, StructType
from sqlalchemy import make_url

from spark_2pc_sink import BatchReport, DualWriteSink, Records, Rows
from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.recipe.placement import Placement
from spark_2pc_sink.recipe.steps import Step
from spark_2pc_sink.testing import assert_same_multiset
from tests.harness.acts import stopped_at
from tests.harness.streams import FileStream
from tests.integration.postgres.database_tables import run
from tests.integration.sink.targets import SCHEMA, Row, Target, record_rows

BATCHES: tuple[list[Row], ...] = (
    [(1, "a", 5), (2, "b", 5)],
    [(1, "A", 9), (2, "B", 1), (3, "c", 1)],
    [(2, "bb", 7), (3, "cc", 0), (4, "d", 1)],
)
#: By table: the rows after all batches.
LEFT: dict[str, list[Row]] = {
    "ignored": [(1, "a", 5), (2, "b", 5), (3, "c", 1), (4, "d", 1)],
    "named": [(1, "A", 5), (2, "bb", 5), (3, "cc", 1), (4, "d", 1)],
    "newer": [(1, "A", 9), (2, "bb", 7), (3, "c", 1), (4, "d", 1)],
    "appended": [row for batch in BATCHES for row in batch],
}
EVERY_ROW = LEFT["appended"]


def sink_of_all_modes(target: Target, reports: list[BatchReport]) -> DualWriteSink:
    """One topic, and a table of each mode, each made by the sink."""
    keyed: dict[str, Any] = {"keys": ["id"], "create_table": True}
    return target.sink(
        on_batch=reports.append,
        writes=[
            Records(target.topic, key="id"),
            Rows("ignored", mode="insert_ignore", **keyed),
            Rows("named", mode="upsert", update_columns=["name"], **keyed),
            Rows("newer", mode="upsert", upsert_where="newer.amount < EXCLUDED.amount", **keyed),
            Rows("appended", create_table=True, primary_key=["id", "amount"]),
        ],
    )


def test_each_mode_keeps_its_promise_over_batches_and_a_crash(stream: FileStream, target: Target) -> None:
    """A1: the driver dies when the third batch is decided; the replay touches no table, and Kafka gets its records."""
    reports: list[BatchReport] = []
    for batch in BATCHES:
        stream.add(batch)
    with stopped_at(Step.DECIDE, times=3):
        stream.run(sink_of_all_modes(target, reports))
    stream.run(sink_of_all_modes(target, reports))
    for table, rows in LEFT.items():
        assert_same_multiset(target.rows(table=table), rows, what=f"rows in {table}")
    assert_same_multiset(record_rows(target.records()), EVERY_ROW, what="records")
    assert [(report.placement, report.row_count, report.rows_left_out) for report in reports] == [
        (Placement.RUN, 8, 0),
        # Two rows that were there, for the table that ignores them; an amount that is less than the one there.
        (Placement.RUN, 12, 3),
        (Placement.SKIP, 0, 0),
    ]
    keys = "SELECT array_agg(attname ORDER BY attnum) FROM pg_attribute JOIN pg_index ON indrelid = attrelid "
    keys += "AND attnum = ANY (indkey) WHERE indisprimary AND indrelid = 'appended'::regclass"
    assert target.rows("*", f"({keys}) AS keys") == [(["id", "amount"],)]


# --- a column that the table lacks -----------------------------------------------------------------------------------

NOTED = StructType([*SCHEMA.fields, StructField("note", StringType())])


@pytest.fixture
def writer(database: str) -> Iterator[str]:
    """The URL with which a role logs in that may write the table `target`, and does not own it."""
    name, password = f"writer_{secrets.token_hex(4)}", secrets.token_hex(8)
    run(
        database,
        "CREATE TABLE target (id bigint, name text, amount integer)",
        f"CREATE ROLE {name} LOGIN PASSWORD '{password}'",
        f"GRANT CREATE, USAGE ON SCHEMA public TO {name}",
        f"GRANT SELECT, INSERT ON target TO {name}",
    )
    yield make_url(database).set(username=name, password=password).render_as_string(hide_password=False)
    run(database, f"REASSIGN OWNED BY {name} TO CURRENT_USER", f"DROP OWNED BY {name} CASCADE", f"DROP ROLE {name}")


def test_a_column_that_comes_while_the_stream_goes_on(stream: FileStream, target: Target, writer: str) -> None:
    """With a restart under the new schema, and within one query; a role that may not add it has written nothing."""
    stream.add([(1, "a", 1)])
    stream.run(target.sink(database=writer, schema_evolution="add_columns"))
    stream.schema = NOTED
    stream.add([(2, "b", 2, "new")])
    with pytest.raises(ConfigurationError, match="must be owner of table target"):
        stream.run(target.sink(database=writer, schema_evolution="add_columns"))
    with pytest.raises(ConfigurationError, match=r"ADD COLUMN .note. text, or .* schema_evolution='add_columns'"):
        stream.run(target.sink(database=writer))
    assert (target.rows(), len(target.records())) == ([(1, "a", 1)], 1)
    owner = target.sink(schema_evolution="add_columns")

    def widened(batch: DataFrame, batch_id: int) -> None:
        owner(batch if batch_id == 1 else batch.withColumn("rank", F.lit(batch_id)), batch_id)

    stream.add([(3, "c", 3, None)])
    stream.run(widened)
    noted = [(1, "a", 1, None, None), (2, "b", 2, "new", None), (3, "c", 3, None, 2)]
    assert_same_multiset(target.rows("id, name, amount, note, rank"), noted, what="rows")
    assert_same_multiset(record_rows(target.records()), [row[:3] for row in noted], what="records")
