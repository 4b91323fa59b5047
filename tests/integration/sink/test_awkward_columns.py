"""Columns with awkward names and values, in a table that the sink makes: both sides say the same."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from spark_2pc_sink import BatchReport
from spark_2pc_sink.testing import TopicRecord
from tests.harness.streams import session_settings
from tests.integration.postgres import database_tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.harness.streams import FileStream
    from tests.integration.sink.targets import Target

#: Upper case, a dot, a quote and a blank; NaN and an infinity; an instant, in a session that is not in UTC.
COLUMNS = {
    "Id": "id",
    "dotted.name": "name",
    'a"quote': "CASE WHEN id = 1 THEN double('NaN') WHEN id = 2 THEN double('-Infinity') ELSE id / 4 END",
    "with space": "timestamp_millis(1700000000000 + id)",
}
ZONE = "Asia/Kathmandu"


def instant(number: int) -> datetime:
    return datetime.fromtimestamp((1_700_000_000_000 + number) / 1000, timezone.utc)


def said(record: TopicRecord) -> tuple[Any, ...]:
    """What a record says, by its key and its value."""
    value = json.loads(record.value or b"")
    assert value.get("dotted.name") == (None if record.key is None else record.key.decode())
    return value["Id"], record.key, str(value['a"quote']), datetime.fromisoformat(value["with space"])


def test_awkward_names_and_values(spark: SparkSession, stream: FileStream, target: Target) -> None:
    """A record may have no key, and a batch no row; verify reads both sides too."""
    reports: list[BatchReport] = []
    stream.add([(1, "a", 0), (2, None, 0), (3, "ż", 0)])
    stream.add([(99, "nobody's", 0)])
    frame = stream.frame().where("id < 99").select(*(F.expr(made).alias(name) for name, made in COLUMNS.items()))
    with session_settings(spark, {"spark.sql.session.timeZone": ZONE}):
        stream.run(target.sink(key="`dotted.name`", on_batch=reports.append), frame)
    assert [(report.row_count, report.record_count) for report in reports] == [(3, 3), (0, 0)]
    expected = [(1, "a", "NaN"), (2, None, "-Infinity"), (3, "ż", "0.75")]
    rows = target.rows('"Id", "dotted.name", "a""quote"::text, "with space"', "target ORDER BY 1")
    assert rows == [(*row, instant(row[0])) for row in expected]
    values = sorted(map(said, target.records()))
    assert values == [(number, None if name is None else name.encode(), *rest) for number, name, *rest in rows]
    report = target.verify()
    assert report.verdict == "same", report.differences


TYPES = """
CREATE SCHEMA "the Types";
CREATE TYPE "the Types"."Mood" AS ENUM ('sad', 'so "so"', 'ok');
CREATE TYPE "the Types"."Pair" AS (n int, "Odd name" "the Types"."Mood");
CREATE DOMAIN "the Types".address AS inet CHECK (family(VALUE) = 4);
CREATE TABLE target (id bigint, mood "the Types"."Mood", moods "the Types"."Mood"[],
    address "the Types".address, addresses inet[], pair "the Types"."Pair", span int8range, bits bit(3), cost money,
    at timetz, doc tsvector, "Of type" regtype, gap interval, months interval, term interval, terms interval[],
    PRIMARY KEY (mood, address))
"""
TYPED = {
    "id": "id",
    "mood": "name",
    "moods": "array(name, NULL)",
    "address": "concat('10.0.0.', id)",
    "addresses": "array('::1', concat('10.0.0.', id))",
    "pair": """concat('(', id, ',"', replace(name, '"', '""'), '")')""",
    "span": "concat('[', id, ',)')",
    "bits": "'011'",
    "cost": "concat('$', id, '.50')",
    "at": "'12:00:00.5+02'",
    "doc": "'''a'' ''b'':1'",
    "`Of type`": "'bigint'",
    "gap": "make_dt_interval(-1, id, 3, 4.500001)",
    "months": "make_ym_interval(-1, id)",
    "term": "make_interval(1, 2, 0, id, 4, 5, -6.000007)",
    "terms": "array(make_interval(0, 0, 0, id), NULL)",
}
#: One change of each column that is compared.
CHANGES = {
    "mood": "'sad'", "moods": "'{ok}'", "address": "'10.0.1.1'", "addresses": "'{}'", "pair": "'(1,)'",
    "span": "'empty'",
    "bits": "'111'", "cost": "'$9'", "at": "'12:00:00.5+03'", "doc": "'a'", '"Of type"': "'int'",
    "gap": "gap + '1 microsecond'", "months": "months + '1 month'", "term": "term - '1 month' + '30 days'",
}  # fmt: skip


@pytest.mark.parametrize(
    "mode", ["upsert", *(pytest.param(mode, marks=pytest.mark.thorough) for mode in ("append", "insert_ignore"))]
)
def test_types_that_spark_does_not_have(spark: SparkSession, stream: FileStream, target: Target, mode: str) -> None:
    """Text and intervals go into a table that is there; a text that a type refuses is a dead letter."""
    database_tables.run(target.database, TYPES)
    good = range(3, 3 + len(CHANGES))
    stream.add([(1, "ok", 0), (2, 'so "so"', 0), (300, "ok", 0), (99, "happy", 0), *((n, "ok", 0) for n in good)])
    frame = stream.frame().select(*(F.expr(made).alias(name.strip("`")) for name, made in TYPED.items()))
    keys = {} if mode == "append" else {"upsert_keys": ["mood", "address"], "mode": mode}
    stream.run(target.sink(key="id", bad_rows="dead_letter", create_table=False, **keys), frame)
    found = target.rows(
        "id, mood, addresses::text, pair::text, term::text, terms::text, gap::text, months::text",
        "target WHERE id < 3 ORDER BY 1",
    )
    assert found == [
        (
            1,
            "ok",
            "{::1,10.0.0.1}",
            "(1,ok)",
            "1 year 2 mons 1 day 04:04:53.999993",
            '{"1 day",NULL}',
            "-22:56:55.499999",
            "-11 mons",
        ),
        (
            2,
            'so "so"',
            "{::1,10.0.0.2}",
            '(2,"so ""so""")',
            "1 year 2 mons 2 days 04:04:53.999993",
            '{"2 days",NULL}',
            "-21:56:55.499999",
            "-10 mons",
        ),
    ]
    assert sorted(json.loads(record.value or b"")["id"] for record in target.records()) == [1, 2, *good]
    letters = target.rows("row->>'id', sqlstate", "kafka_transaction_state_dead_letters ORDER BY 1")
    assert letters == [("300", "22P02"), ("99", "22P02")]
    report = target.verify()
    assert report.verdict == "same", str(report)
    assert [part.what for part in report.not_checked] == ["column terms"]
    changed = dict(zip(good, CHANGES.items(), strict=True))
    for number, (column, value) in changed.items():
        database_tables.run(target.database, f"UPDATE target SET {column} = {value} WHERE id = {number}")
    found_by = {
        each.key: each.text.split(" is ")[0] for each in target.verify(keys=["id"], differences_max=20).differences
    }
    assert found_by == {f"id={number}": column.strip('"') for number, (column, _) in changed.items()}
