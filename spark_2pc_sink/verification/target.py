"""The target of a comparison: table, mode and key, as given, or as the sink has noted them with its newest claim."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options.names import quote_identifier
from spark_2pc_sink.verification.column_rules import ComparedColumns, Paths
from spark_2pc_sink.verification.record_columns import RecordColumn
from spark_2pc_sink.verification.record_sources import RecordSources
from spark_2pc_sink.verification.report import NotChecked, Refusal
from spark_2pc_sink.verification.table_shape import TableShape
from spark_2pc_sink.verification.tombstones import Tombstones
from spark_2pc_sink.verification.value_fields import path_parts

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
        unchanged: columns whose value the last record of a row may lack (``unchanged_when``).
        noted_keys: those of the keys that the sink has noted, and no person has said.
        noted_order: the column that is order_by, where the sink has noted it.
        sources: which part of a record tells a column; None where its fields have the names of the columns.
        unforeseen: why records do not tell which rows the table has; None where they do.
    """

    table: str | None = None
    mode: Mode = "append"
    keys: tuple[str, ...] = ()
    order_by: str | None = None
    late_rows: Literal["replace", "keep_newer"] = "replace"
    record_columns: tuple[RecordColumn, ...] = ()
    tombstones: Tombstones | None = None
    update_columns: tuple[str, ...] | None = None
    unchanged: tuple[str, ...] = ()
    noted_keys: tuple[str, ...] = ()
    noted_order: str | None = None
    sources: RecordSources | None = None
    unforeseen: Refusal | None = None

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

    @property
    def paths(self) -> Paths | None:
        """The fields that tell columns; None where they have the names of the columns."""
        return None if self.sources is None or self.sources.by_name else self.sources.path_of

    def untold(self) -> Refusal | None:
        """Why no record tells the columns that the sink noted as key or order; None where that is not known yet."""
        noted = [*self.noted_keys, *([] if self.noted_order is None else [self.noted_order])]
        lacking = [] if self.paths is None else [name for name in noted if not self.paths(name)]
        return unnamed(lacking) if lacking else None

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
        """Without columns that the table keeps as an earlier record of their key has set them."""
        why = dict.fromkeys(self.unchanged, "with unchanged_when the last record of a row may lack its value")
        if self.update_columns is not None:
            known = {*self.keys, *self.update_columns}
            others = (column.name for column in compared.columns if column.name not in known)
            why |= dict.fromkeys(others, "update_columns leaves it as it was when the row was new")
        left = [column.name for column in compared.columns if column.name in why]
        return replace(
            compared,
            columns=tuple(column for column in compared.columns if column.name not in why),
            not_checked=(*compared.not_checked, *(NotChecked(f"column {name}", why[name]) for name in left)),
        )


def unnamed(columns: Sequence[str]) -> Refusal:
    """Columns of the key or the order that no part of the records tells."""
    names = ", ".join(columns)
    return Refusal(
        f"no part of the records tells {names}, by which rows are known or ordered",
        f"write {names} into the record's value, or pass --record-columns",
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

    def completed(self, layout: SinkLayout | None, *, unordered: bool = False) -> Target:
        """With what the sink has noted where nothing is given.

        Args:
            layout: of the sink's newest claim; None where none is known.
            unordered: records of one key are in no order within a batch.
        """
        if layout is None:
            mode: Mode = self.mode or ("upsert" if self.keys and self.order_by else "append")
            return Target(
                table=self.table,
                mode=mode,
                keys=self.keys or (),
                order_by=self.order_by,
                late_rows=self.late_rows or "replace",
                record_columns=self.record_columns,
                tombstones=Tombstones.of(None, self.keys or ()) if mode == "upsert" else None,
            )
        mode = self.mode or _mode(layout)
        upsert = mode == "upsert"
        keys = layout.upsert_keys if self.keys is None else self.keys
        order = _order_by(layout, unordered=unordered) if upsert and self.order_by is None else None
        return Target(
            table=self.table or layout.table,
            mode=mode,
            keys=keys,
            order_by=self.order_by if order is None else quote_identifier(order),
            late_rows=self.late_rows or ("keep_newer" if layout.upsert_late_rows == "keep_newer" else "replace"),
            record_columns=self.record_columns,
            tombstones=Tombstones.of(layout, keys) if upsert else None,
            update_columns=layout.update_columns if upsert else None,
            unchanged=tuple(layout.unchanged_when or ()) if upsert else (),
            noted_keys=keys if self.keys is None and mode != "append" else (),
            noted_order=order,
            sources=RecordSources(layout),
            unforeseen=_unforeseen(layout, order_lost=unordered and self.order_by is None),
        )


def _mode(layout: SinkLayout) -> Mode:
    if layout.mode == "insert_ignore":
        return "insert_ignore"
    return "upsert" if layout.mode == "upsert" else "append"


def _unforeseen(layout: SinkLayout, *, order_lost: bool) -> Refusal | None:
    if layout.upsert_where is not None:
        return Refusal(
            "upsert_where decides by the row in the table, and no record tells what it has decided",
            "where a condition on an order will do, use upsert_order_by with upsert_late_rows='keep_newer' instead",
        )
    if layout.delete_when is not None and layout.tombstone_when is None:
        return Refusal(
            "rows were deleted without tombstones, and no record tells which", "pass tombstones=True to the sink"
        )
    order = layout.upsert_order_by
    if order_lost and order is not None and (layout.mode == "insert_ignore" or path_parts(order) is None):
        return Refusal(
            f"{order} decides among rows of one key in a batch, and no record tells it",
            f"write {order} to the table and into the record's value, each as a field of its own",
        )
    return None


def _order_by(layout: SinkLayout, *, unordered: bool) -> str | None:
    """The column that decides among records of a key; None where the last of them is the table's row.

    It decides where rows of several batches compete, and within a batch whose records are in no order.
    """
    order, late = layout.upsert_order_by, layout.upsert_late_rows == "keep_newer"
    path = None if order is None else path_parts(order)
    if path is not None:
        return ".".join(path) if late or unordered else None
    # With late rows it is a column of the table, in Spark's quotes.
    return order.strip().strip("`") if order is not None and late else None
