"""verify after the sink itself, on Spark: columns of many types are the same, and a change of each is found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StructField, StructType

from spark_2pc_sink import VerifyReport, verify
from tests.conftest import MakeTopic
from tests.harness.providers import Broker
from tests.harness.streams import FileStream, make_sink, session_settings
from tests.integration.postgres.database_tables import run

TABLE = """
CREATE TABLE target (
  id bigint PRIMARY KEY, raw bytea, amount numeric(20, 6), ratio double precision, small real, at timestamptz,
  local timestamp, day date, yes boolean, numbers bigint[], words text[], document jsonb,
  note text, "Odd ""name" text, nested jsonb, nothing text
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
    "nested": "named_struct('at', timestamp_micros(1700000000123456 + id), 'more', map('of', id))",
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
    20: """nested = jsonb_set(nested, '{at}', '"2023-11-14T22:13:20.124Z"')""",
    25: "ratio = 1.0000000000000002 * ratio",
}


def test_columns_of_many_types(
    spark: SparkSession, kafka: Broker, database: str, topic: MakeTopic, transactional_id: str, tmp_path: Path
) -> None:
    run(database, TABLE)
    name = topic()
    stream = FileStream(spark, tmp_path, StructType([StructField("id", LongType())]))
    for first in (0, 30):
        stream.add([(number,) for number in range(first, first + 30)])
    frame = stream.frame().selectExpr(
        "id", *(f"CASE WHEN id % 3 > 0 THEN {made} END AS {column}" for column, made in COLUMNS.items())
    )
    said: dict[str, Any] = {"mode": "upsert", "upsert_keys": ["id"], "key": "cast(id AS string)", "value": EXACT}
    sides: dict[str, Any] = {"database": database, "transactional_id": transactional_id}
    with session_settings(spark, {"spark.sql.session.timeZone": "Asia/Kathmandu"}):
        stream.run(make_sink(broker=kafka, topic=name, create_table=False, **sides, **said), frame)

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
    assert {int(found.key.removeprefix("id=")) for found in report.differences if found.key} <= CHANGES.keys()
    assert dict(report.counts) == {"differing": len(CHANGES)}, str(report)
