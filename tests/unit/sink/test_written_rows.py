"""Counts of written rows: those of several tables add up, and the report shows what is not nothing."""

from __future__ import annotations

from spark_2pc_sink.recipe.placement import Placement
from spark_2pc_sink.sink.report import NOTHING_WRITTEN, BatchReport, WrittenRows

SOME = WrittenRows(given=10, written=6, deleted=1, left_out=2)


def test_counts_of_tables_add_up() -> None:
    assert SOME + WrittenRows(given=1, written=1) == WrittenRows(given=11, written=7, deleted=1, left_out=2)
    assert NOTHING_WRITTEN + SOME == SOME


def test_a_report_names_them_where_there_are_any() -> None:
    plain = BatchReport(transactional_id="shop", batch_id=1, placement=Placement.RUN, row_count=10)
    assert "run: 10 rows, 0 records" in str(plain)
    some = BatchReport(
        transactional_id="shop", batch_id=1, placement=Placement.RUN, row_count=10, rows_deleted=1, rows_left_out=2
    )
    assert "run: 10 rows (1 deleted) (2 left out), 0 records" in str(some)
