"""The places of records: whether all rows of one upsert key have one record key, one topic and one partition.

Only then can the last record of a key be the row that the table keeps: a record is superseded by a later one with its
key, in its partition. It is so where these are made of the upsert keys alone. Where they are made of other columns too
it depends on the rows, and nobody sees more of them than those of some partitions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jdbc_state.sink_log import sink_log
from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.sink.contract.record_expressions import same_semantics
from spark_2pc_sink.sink.table.spark_sql import quoted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

    from spark_2pc_sink.options import Lane, Rows
    from spark_2pc_sink.sink.contract.record_expressions import RecordExpressions


def check_places(frame: DataFrame, expressions: RecordExpressions, lane: Lane, transactional_id: str) -> None:
    """Refuse to leave records out, or warn, where records of one upsert key may have several keys or partitions.

    Args:
        frame: the rows of the lane, for their columns.
        expressions: of the lane, analyzed.
        lane: of the sink.
        transactional_id: the sink's id.

    Raises:
        ConfigurationError: records are to be left out, and rows of one upsert key need not have one place; or a record
            without a key is to be a tombstone.
    """
    records, rows = lane.records, lane.rows
    if records is not None and records.tombstone_when is not None and expressions.key is None:
        raise ConfigurationError(
            option="tombstone_when",
            value=records.tombstone_when,
            rule="a tombstone says that its key has no row, and the records have no key",
            remedy="pass key=, made of the upsert keys",
        )
    if records is None or rows is None or (rows.order_by is None and records.tombstone_when is None):
        return
    leave_out = records.superseded == "leave_out"
    if expressions.key is None:
        if leave_out:
            raise _refused(rows, "the records have no key, by which a later one would supersede them")
        return
    others = _made_of_others(frame, expressions, rows.keys)
    if not others:
        return
    made = f"their {' and '.join(others)} {'are' if len(others) > 1 else 'is'} not made of upsert_keys alone"
    if leave_out:
        raise _refused(rows, f"{made}, so rows with one upsert key may have several")
    sink_log(__name__, transactional_id).warning(
        "of the records, %s. Where rows with one upsert key have several, the last record of a key need not be the "
        "row that the table keeps",
        made,
    )


def _made_of_others(frame: DataFrame, expressions: RecordExpressions, upsert_keys: Sequence[str]) -> list[str]:
    """Which parts of a record's place take more than the upsert keys."""
    made_of = [expressions.columns[key] for key in upsert_keys if key in expressions.columns]
    # A batch that has nothing but the upsert keys: what can be evaluated there is made of them.
    known = [
        quoted(name)
        for name in frame.columns
        if quoted(name) in made_of or (name in made_of and same_semantics(frame, name, quoted(name)))
    ]
    keys = frame.selectExpr(*known)
    forms = {form.format(sql) for sql in made_of for form in ("{}", "CAST({} AS STRING)")}
    parts = {"key": expressions.key, "topic": expressions.topic, "partition": expressions.partition}
    return [
        option for option, sql in parts.items() if sql is not None and sql not in forms and not _evaluates(keys, sql)
    ]


def _evaluates(frame: DataFrame, sql: str) -> bool:
    from pyspark.errors import AnalysisException  # noqa: PLC0415 - Spark is imported where it is needed

    try:
        frame.selectExpr(f"{sql} AS it").schema  # noqa: B018 - asking for it has the expression analyzed
    except AnalysisException:
        return False
    return True


def _refused(rows: Rows, rule: str) -> ConfigurationError:
    return ConfigurationError(
        option="upsert_superseded",
        value="leave_out",
        rule=rule,
        remedy=f"make the key of the upsert keys, as key={rows.keys[0]!r} is; or send them, with "
        "upsert_superseded='send_first'",
    )
