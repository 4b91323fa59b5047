"""Columns with awkward names and values, in a table that the sink makes: both sides say the same."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from spark_2pc_sink import BatchReport, verify
from spark_2pc_sink.testing import TopicRecord
from tests.harness.streams import session_settings

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
    report = verify(
        transactional_id=target.transactional_id,
        kafka={"bootstrap.servers": target.broker.bootstrap},
        database=target.database,
    )
    assert report.verdict == "same", report.differences
