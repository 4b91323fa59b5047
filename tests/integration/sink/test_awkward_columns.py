"""Columns of types that Spark does not have, and those that it has and few use: both sides say the same."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from tests.integration.postgres import database_tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.harness.streams import FileStream
    from tests.integration.sink.targets import Target

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


def test_types_that_spark_does_not_have(spark: SparkSession, stream: FileStream, target: Target) -> None:
    """Text and intervals go into a table that is there; a text that a type refuses is a dead letter."""
    database_tables.run(target.database, TYPES)
    good = range(3, 6)
    stream.add([(1, "ok", 0), (2, 'so "so"', 0), (300, "ok", 0), (99, "happy", 0), *((n, "ok", 0) for n in good)])
    frame = stream.frame().select(*(F.expr(made).alias(name.strip("`")) for name, made in TYPED.items()))
    keys: dict[str, Any] = {"upsert_keys": ["mood", "address"], "mode": "upsert"}
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
