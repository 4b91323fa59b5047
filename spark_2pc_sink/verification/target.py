"""The target of a comparison: table, mode and key, as given, or as the sink has noted them with its newest claim."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options.names import quote_identifier
from spark_2pc_sink.verification.column_rules import ComparedColumns
from spark_2pc_sink.verification.record_columns import RecordColumn
from spark_2pc_sink.verification.report import NotChecked
from spark_2pc_sink.verification.table_shape import TableShape
from spark_2pc_sink.verification.tombstones import Tombstones

if TYPE_CHECKING:
    from spark_2pc_sink.options.layout import SinkLayout


#: How the sink writes the table.
Mode = Literal["append", "upsert", "insert_ignore"]


@dataclass(frozen=True, kw_only=True)
class Target:
    """What the sink writes, and how.

    Attributes:
        table: 'table' or 'schema.table'; None where nobody has said it.
        mode: of the sink.
        keys: the columns that name a row; () where none were given.
        order_by: SQL over columns whose greatest value wins; None for none.
        late_rows: what becomes of a row that is older than the table's.
        record_columns: expressions, where the value of a record is not the row.
        tombstones: how records without a value are read; None where they are records as any.
        update_columns: those of a row that later records change; None for all.
        unforeseen: why nobody can tell by the records which rows the table has; '' where that can be told.
    """

    table: str | None = None
    mode: Mode = "append"
    keys: tuple[str, ...] = ()
    order_by: str | None = None
    late_rows: Literal["replace", "keep_newer"] = "replace"
    record_columns: tuple[RecordColumn, ...] = ()
    tombstones: Tombstones | None = None
    update_columns: tuple[str, ...] | None = None
    unforeseen: str = ""

    def __post_init__(self) -> None:
        if self.mode != "append" and not self.keys:
            raise ConfigurationError(
                option="keys",
                value=None,
                rule=f"with mode={self.mode!r} they are the sink's upsert_keys",
                remedy="pass keys=['order_id'], --keys order_id",
            )
        if self.order_by is not None and self.mode != "upsert":
            raise ConfigurationError(
                option="order_by",
                value=self.order_by,
                rule="it has a meaning with mode='upsert' only",
                remedy="pass mode='upsert', or leave it out",
            )

    def key_of(self, shape: TableShape, compared: Sequence[str]) -> tuple[str, ...]:
        """The columns that name a row, where they can be compared.

        Args:
            shape: of the table.
            compared: names of the columns that are compared.

        Raises:
            ConfigurationError: one that was given is not among them.
        """
        for name in self.keys:
            if name not in compared:
                raise ConfigurationError(
                    option="keys",
                    value=list(self.keys),
                    rule=f"records tell every one of them, and {name!r} is not among what can be compared",
                    remedy=f"the columns are {', '.join(compared) or 'none'}; else pass record_columns",
                )
        return self.keys or shape.key_among(compared)

    def updated_only(self, compared: ComparedColumns) -> ComparedColumns:
        """Without columns that the table keeps as the first record of their key has set them."""
        if self.update_columns is None:
            return compared
        known = {*self.keys, *self.update_columns}
        left = tuple(column for column in compared.columns if column.name not in known)
        if not left:
            return compared
        why = "update_columns leaves it as it was when the row was new"
        return replace(
            compared,
            columns=tuple(column for column in compared.columns if column.name in known),
            not_checked=(*compared.not_checked, *(NotChecked(f"column {each.name}", why) for each in left)),
        )


@dataclass(frozen=True, kw_only=True)
class GivenTarget:
    """What the caller says of the target; None for what the sink has noted. See `Target`."""

    table: str | None = None
    mode: Mode | None = None
    keys: tuple[str, ...] | None = None
    order_by: str | None = None
    late_rows: Literal["replace", "keep_newer"] | None = None
    record_columns: tuple[RecordColumn, ...] = ()

    def completed(self, layout: SinkLayout | None) -> Target:
        """With what the sink has noted where nothing is given.

        Args:
            layout: of the sink's newest claim; None where none is known.
        """
        if layout is None:
            return self._target(self.mode or ("upsert" if self.keys and self.order_by else "append"), None, None, None)
        mode: Mode = "upsert" if layout.mode == "upsert" else "append"
        if layout.mode == "insert_ignore":
            mode = "insert_ignore"
        return self._target(self.mode or mode, layout.upsert_keys, _order_by(layout), layout)

    def _target(
        self,
        mode: Mode,
        keys: Sequence[str] | None,
        order_by: str | None,
        layout: SinkLayout | None,
    ) -> Target:
        noted_late = "keep_newer" if layout is not None and layout.upsert_late_rows == "keep_newer" else "replace"
        chosen = tuple((keys or ()) if self.keys is None else self.keys)
        return Target(
            table=self.table or (None if layout is None else layout.table),
            mode=mode,
            keys=chosen,
            order_by=(self.order_by or order_by) if mode == "upsert" else self.order_by,
            late_rows="keep_newer" if (self.late_rows or noted_late) == "keep_newer" else "replace",
            record_columns=self.record_columns,
            tombstones=Tombstones.of(layout, chosen) if mode == "upsert" else None,
            update_columns=None if layout is None or mode != "upsert" else layout.update_columns,
            unforeseen="" if layout is None else _unforeseen(layout),
        )


def _unforeseen(layout: SinkLayout) -> str:
    if layout.upsert_where is not None:
        return "upsert_where decides by the row that is there, and no record tells what it has decided"
    if layout.delete_when is not None and layout.tombstone_when is None:
        return "rows were deleted without tombstones, and no record tells which: pass tombstones=True to the sink"
    return ""


def _order_by(layout: SinkLayout) -> str | None:
    """The sink's order where rows of several batches compete; else the last record of a key is the table's row."""
    if layout.upsert_late_rows != "keep_newer" or layout.upsert_order_by is None:
        return None
    # It is a column of the table then, in Spark's quotes where it has any.
    return quote_identifier(layout.upsert_order_by.strip().strip("`"))
