"""What lies in a topic and in a table, in a form in which two runs can be compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.workbench import Workbench
    from benchmarks.writers import Task


@dataclass(frozen=True)
class Contents:
    """Both sides; the digests are sums of hashes of rows, so the order does not matter, and repetitions do.

    Attributes:
        rows: in the table.
        row_digest: over all of them.
        records: in the topic, as a read_committed reader sees it.
        record_digest: over keys and values.
    """

    rows: int
    row_digest: str
    records: int
    record_digest: str


def contents(bench: Workbench, task: Task) -> Contents:
    """Read both sides; counts of several topics and tables are added up, digests are listed."""
    found = [_contents(bench, each) for each in task.all]
    return Contents(
        rows=sum(each.rows for each in found),
        row_digest=" ".join(each.row_digest for each in found),
        records=sum(each.records for each in found),
        record_digest=" ".join(each.record_digest for each in found),
    )


def table_contents(bench: Workbench, table: str) -> tuple[int, str]:
    """How many rows a table has, and their digest."""
    with bench.engine.connect() as connection:
        rows, digest = connection.exec_driver_sql(
            f"SELECT count(*), sum(hashtextextended(found::text, 0)::numeric) FROM {table} AS found"
        ).one()
    return rows, str(digest)


def _contents(bench: Workbench, task: Task) -> Contents:
    """Read both sides. The topic is read with Spark's own connector, which shares no code with the sink."""
    rows, row_digest = table_contents(bench, task.table)
    found: Any = (
        bench.spark.read.format("kafka")
        .option("kafka.bootstrap.servers", bench.servers.bootstrap)
        .option("kafka.isolation.level", "read_committed")
        .option("subscribe", task.topic)
        .load()
        .selectExpr("count(*) AS records", "sum(CAST(xxhash64(key, value) AS DECIMAL(38, 0))) AS digest")
        .collect()
    )
    return Contents(rows, row_digest, found[0].records, str(found[0].digest))


def compare(ours: Contents | None, theirs: Contents | None) -> Contents:
    """The contents of both, which must be the same.

    Raises:
        SystemExit: they differ, so their times must not be compared.
    """
    if ours is None or ours != theirs:
        message = f"the two sides did not end with the same: {ours} and {theirs}"
        raise SystemExit(message)
    return ours
