"""verify after the sink itself, on Spark: columns of many types are the same, and a change of each is found."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.types import LongType, StructField, StructType

from spark_2pc_sink import VerifyReport, verify
from tests.conftest import MakeTopic
from tests.harness.streams import FileStream, make_sink, session_settings
from tests.integration.postgres.database_tables import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.harness.providers import Broker

TABLE = """
CREATE TABLE target (
  id bigint PRIMARY KEY, raw bytea, amount numeric(20, 6), ratio double precision, small real, at timestamptz,
  local timestamp, day date, yes boolean, numbers bigint[], words text[], document jsonb,
  note text, "Odd ""name" text, nothing text
)
"""
#: Of each id. A third is null everywhere but in the key.
COLUMNS = {
    "raw": "cast(concat('b', id, unhex('00FF5C0A')) AS binary)",
    "amount": "cast(id / 7.0 AS decimal(20, 6))",
    "ratio": "element_at(array(0.1d, 1e300d, -1.5e-7d, id / 3d, double('NaN'), double('-Infinity')), int(id % 6 + 1))",
    "small": "cast(id / 3.0 AS float)",
    "at": "timestamp_micros(1700000000123456 + id * 7919)",
    "local": "cast(timestamp_micros(-1700000000123456 + id) AS timestamp_ntz)",
    "day": "date_add(date'1969-12-25', cast(id AS int))",
    "yes": "id % 2 = 0",
    "numbers": "array(id, NULL, -id)",
    "words": """array('a"b', NULL, '', concat('ä,{}', id))""",
    "document": "to_json(named_struct('id', id, 'list', array('x', NULL), 'text', '\"quoted\"'))",
    "note": """concat('"double" \\'single\\' \\\\ tab\\t break\\n € 漢字 🚲 ', id)""",
    '`Odd "name`': "concat('odd ', id)",
    "nothing": "cast(NULL AS string)",
}
#: The record says timestamps to the microsecond.
EXACT = """to_json(struct(*), map('timestampFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    'timestampNTZFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"))"""
#: One change of each column, as small as its type allows; of the rows with these ids.
CHANGES = {
    1: "raw = raw || '\\x00'",
    2: "amount = amount + 0.000001",
    5: "small = small + 0.001",
    7: "at = at + interval '1 microsecond'",
    8: "local = local + interval '1 microsecond'",
    10: "day = day + 1",
    11: "yes = NOT yes",
    13: "numbers[2] = 0",
    14: "words[3] = ' '",
    16: """document = jsonb_set(document, '{list,0}', '"y"')""",
    17: "note = note || ' '",
    19: '"Odd ""name" = NULL',
    25: "ratio = 1.0000000000000002 * ratio",
}


@pytest.mark.parametrize(
    ("mode", "value"), [("append", None), ("upsert", EXACT)], ids=["append, usual JSON", "upsert, exact JSON"]
)
def test_columns_of_many_types(
    spark: SparkSession,
    kafka: Broker,
    database: str,
    topic: MakeTopic,
    transactional_id: str,
    tmp_path: Path,
    mode: str,
    value: str | None,
) -> None:
    run(database, TABLE)
    name = topic()
    stream = FileStream(spark, tmp_path, StructType([StructField("id", LongType())]))
    for first in (0, 30):
        stream.add([(number,) for number in range(first, first + 30)])
    frame = stream.frame().selectExpr(
        "id", *(f"CASE WHEN id % 3 > 0 THEN {made} END AS {column}" for column, made in COLUMNS.items())
    )
    upsert: dict[str, Any] = {"mode": "upsert", "upsert_keys": ["id"]} if mode == "upsert" else {}
    said: dict[str, Any] = {"key": "cast(id AS string)", **({} if value is None else {"value": value})}
    sides: dict[str, Any] = {"database": database, "transactional_id": transactional_id}
    stream.run(make_sink(broker=kafka, topic=name, create_table=False, **sides, **upsert, **said), frame)

    def compare() -> VerifyReport:
        return verify(kafka={"bootstrap.servers": kafka.bootstrap}, **sides)  # all else the sink has noted

    report = compare()
    assert report.same, str(report)
    assert (report.records, report.rows) == (60, 60)
    # What no record has cannot be told from what is null in all.
    assert "column nothing" in {part.what for part in report.not_checked}
    assert set(report.columns) >= {"id", *(column.strip("`") for column in COLUMNS)} - {"nothing"}
    for changed, change in CHANGES.items():
        run(database, f"UPDATE target SET {change} WHERE id = {changed}")
    report = compare()
    # The usual JSON tells milliseconds, and the report said that no more is compared.
    seen = {number for number in CHANGES if value is not None or number not in (7, 8)}
    assert {int(found.key.removeprefix("id=")) for found in report.differences if found.key} <= seen
    assert dict(report.counts) == {"differing": len(seen)}, str(report)


#: What the record says and PostgreSQL reads in another way, or not at all.
SPELT_OTHERWISE = {
    "day": "element_at(array(date'+10000-01-01', date'0000-02-29', date'-0100-12-31'), int(id % 3 + 1))",
    "at": "element_at(array(timestamp'+10000-01-01 04:59:59.5', timestamp'0000-01-01', now_), int(id % 3 + 1))",
    "local": "cast(element_at(array(timestamp_ntz'-4000-01-01', timestamp_ntz'9999-12-31'), int(id % 2 + 1)) AS "
    "timestamp_ntz)",
    "any": "element_at(array(parse_json('null'), NULL, parse_json('[null, 1]')), int(id % 3 + 1))",
    "nested": """named_struct('text', '"2020-02-30T00:00:00Z"', 'at', array(now_,
        timestamp_seconds(-62135596800 - 20476), timestamp_seconds(253402300799), NULL))""",
    "hidden": "concat('a', chr(0), id)",
}


def test_what_postgresql_reads_otherwise(
    spark: SparkSession, kafka: Broker, database: str, topic: MakeTopic, transactional_id: str, tmp_path: Path
) -> None:
    """Years as Java spells them, JSON that is null, instants inside of JSON in a zone, NUL for Kafka alone."""
    name = topic()
    stream = FileStream(spark, tmp_path, StructType([StructField("id", LongType())]))
    stream.add([(number,) for number in range(12)])
    now = "timestamp_micros(1700000000123456 + id)"
    columns = {column: made.replace("now_", now) for column, made in SPELT_OTHERWISE.items()}
    frame = stream.frame().selectExpr("id", *(f"{made} AS {column}" for column, made in columns.items()))
    sides: dict[str, Any] = {"database": database, "transactional_id": transactional_id}
    written = {column: column for column in ("id", *columns) if column != "hidden"}
    sink = make_sink(broker=kafka, topic=name, key="cast(id AS string)", columns=written, **sides)
    with session_settings(spark, {"spark.sql.session.timeZone": "Asia/Kathmandu"}):
        stream.run(sink, frame)

    def compare() -> VerifyReport:
        return verify(kafka={"bootstrap.servers": kafka.bootstrap}, **sides)

    report = compare()
    assert report.same, str(report)
    assert set(report.columns) == set(written)
    changes = {
        0: "day = day + 1",
        1: "at = at + interval '1 second'",
        2: "local = local + interval '1 day'",
        3: "\"any\" = '0'",
        4: """nested = jsonb_set(nested, '{at,0}', '"2023-11-14T22:13:20.124Z"')""",
        5: """nested = jsonb_set(nested, '{text}', '"2020-02-30T00:00:01Z"')""",
    }
    for changed, change in changes.items():
        run(database, f"UPDATE target SET {change} WHERE id = {changed}")
    report = compare()
    assert sum(report.counts.values()) == 2 * len(changes), str(report)
