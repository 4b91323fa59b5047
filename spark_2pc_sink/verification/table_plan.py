"""The plan of comparing the table: its shape, the columns, and which records are held against which rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, TypeVar

from spark_2pc_sink.verification.column_rules import ComparedColumns, compared_columns
from spark_2pc_sink.verification.differences import THE_TABLE, Differences
from spark_2pc_sink.verification.places import Places
from spark_2pc_sink.verification.record_columns import RecordColumn
from spark_2pc_sink.verification.record_facts import FieldFacts, RecordFacts
from spark_2pc_sink.verification.report import Refusal
from spark_2pc_sink.verification.side_sql import SideSql
from spark_2pc_sink.verification.staging import NewFieldsError, NotRowsError
from spark_2pc_sink.verification.table_shape import TableShape
from spark_2pc_sink.verification.target import Target, unnamed

T = TypeVar("T")

_RECORD_COLUMNS: Final = "pass --record-columns (record_columns), which says how a record becomes a row"


@dataclass
class TablePlan:
    """How the table is compared; it learns when records turn up that have more fields than the sample had.

    Attributes:
        target: table, mode and key.
        shape: of the table.
        facts: of the records.
        places: of the records.
        whole: every row must have a record. Else only records are looked for among the rows.
    """

    target: Target
    shape: TableShape
    facts: RecordFacts
    places: Places
    whole: bool

    @property
    def compared(self) -> ComparedColumns:
        """The columns that are compared."""
        facts = self.facts
        if not facts.records and not facts.others:
            # Without any record every row is one too much, whatever it says.
            facts = RecordFacts({column.name: FieldFacts() for column in self.shape.columns})
        target, given = self.target, self.record_columns
        by_user = {} if target.record_columns else {"lacking": "no part of the records is made of what it is made of"}
        keys = () if target.mode == "append" else target.keys
        found = compared_columns(self.shape, facts, given, paths=target.paths, keys=keys, **by_user)
        return self.target.updated_only(found)

    @property
    def record_columns(self) -> tuple[RecordColumn, ...]:
        """The expressions that make a row of a record; none where the fields of its value do."""
        if self.target.record_columns or self.facts.records or not self.facts.others:
            return self.target.record_columns
        return () if self.target.sources is None else self.target.sources.alone(self.shape)

    def learn(self, values: Iterable[bytes]) -> None:
        """Take more records into account."""
        self.facts.note(values)

    def carry_out(self, compare: Callable[[], T], differences: Differences) -> T | None:
        """Compare, once more where records turn up with fields that are columns and were not known.

        Args:
            compare: does it by this plan.
            differences: told what is not compared.

        Returns:
            what ``compare`` has found; None where most records cannot become rows, which is said.
        """
        while True:
            try:
                found = compare()
            except NewFieldsError as error:
                self.learn(error.values)
            except NotRowsError as error:
                differences.skip(THE_TABLE, f"most records cannot become rows of it: {error}", _RECORD_COLUMNS)
                return None
            else:
                self.explain(differences)
                return found

    def refusal(self) -> Refusal | None:
        """Why nothing can be compared; None where something can."""
        if self.target.unforeseen is not None:
            return self.target.unforeseen
        if self.target.mode == "insert_ignore" and not self.whole:
            return Refusal(
                "with mode='insert_ignore' the first record of a key counts, so only all batches can be compared",
                "leave out --since, --last and --batch",
            )
        if self.target.record_columns:
            return None
        if not self.record_columns and self.facts.others and not self.facts.records:
            return Refusal("the values of the records are not JSON objects", _RECORD_COLUMNS)
        if not self.compared.columns:
            fields = ", ".join(self.facts.fields) or "none"
            return Refusal(f"no column can be compared: the records have the fields {fields}", _RECORD_COLUMNS)
        noted = (*self.target.noted_keys, *([] if self.target.noted_order is None else [self.target.noted_order]))
        lacking = [name for name in noted if name not in self.compared.names]
        return unnamed(lacking) if lacking else None

    def sql(self) -> SideSql:
        """The statements.

        Raises:
            ConfigurationError: a key is not among the columns that are compared.
        """
        compared = self.compared
        return SideSql(
            table=self.shape.table,
            compared=compared,
            key=self.target.key_of(self.shape, compared.names),
            upsert=self.target.mode != "append",
            order_by=self.target.order_by,
            order_first=self.target.late_rows == "keep_newer",
            places=len(self.places),
            tombstones=self.target.tombstones,
            first_batch=self.target.mode == "insert_ignore",
        )

    def explain(self, differences: Differences) -> None:
        """Say what of the table is not compared."""
        for part in self.compared.not_checked:
            differences.skip(part.what, part.why)
