"""Layout of a sink: the places of its records and rows, and how both are made from a batch.

A job stores it in the database with its claim, so that comparing both sides needs no arguments. Connections are not
part of it, so it has no secret unless a person has written one into an expression.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spark_2pc_sink.options.outputs import Lane


@dataclass(frozen=True, kw_only=True)
class SinkLayout:
    """The options of a sink that determine its data on either side; see `SinkOptions` for each.

    Expressions are as the user wrote them, and None if the sink chose by the columns of the batch.

    Attributes:
        table: None if the rows go to no table.
        records: False if no records are made from the rows.
        rows: rows of an output, see `Rows`; None for the rows of the batch.
        where: filter of an output, see `Rows`; None for all rows.
        lanes: for a sink with several outputs, one layout for each lane, with only the dead letters' places in
            addition; empty for one topic and one table.
        dead_letter_topic: None if dead letters go to no topic.
        dead_letter_table: as quoted SQL; None if dead letters go to no topic, and they are not compared.
    """

    table: str | None = None
    topic: str | None = None
    key: str | None = None
    value: str | None = None
    headers: str | None = None
    partition: str | None = None
    key_format: str = "raw"
    value_format: str = "json"
    columns: Mapping[str, str] | None = None
    mode: str = "append"
    upsert_keys: tuple[str, ...] = ()
    upsert_order_by: str | None = None
    upsert_superseded: str = "send_first"
    upsert_late_rows: str = "replace"
    delete_when: str | None = None
    tombstone_when: str | None = None
    update_columns: tuple[str, ...] | None = None
    upsert_where: str | None = None
    unchanged_when: Mapping[str, str] | None = None
    records: bool = True
    rows: str | None = None
    where: str | None = None
    lanes: tuple[SinkLayout, ...] = ()
    dead_letter_topic: str | None = None
    dead_letter_table: str | None = None

    @classmethod
    def of(cls, lanes: tuple[Lane, ...], *, dead_letters: tuple[str, str] | None = None) -> SinkLayout:
        """The layout of a sink.

        Args:
            lanes: the sink's lanes.
            dead_letters: the topic and the table of its dead letters; None if they go to no topic.
        """
        one = len(lanes) == 1 and lanes[0].alone
        layout = cls._of_lane(lanes[0]) if one else cls(lanes=tuple(map(cls._of_lane, lanes)))
        if dead_letters is None:
            return layout
        return replace(layout, dead_letter_topic=dead_letters[0], dead_letter_table=dead_letters[1])

    @classmethod
    def _of_lane(cls, lane: Lane) -> SinkLayout:
        noted: dict[str, Any] = {
            "records": lane.records is not None,
            "rows": lane.source.rows,
            "where": lane.source.where,
        }
        if lane.records is not None:
            noted |= {name: getattr(lane.records, name) for name in _RECORD_PARTS}
            noted["upsert_superseded"] = lane.records.superseded
            noted["tombstone_when"] = lane.records.tombstone_when
        if lane.rows is not None:
            noted |= {"table": lane.rows.table, "columns": lane.rows.columns, "mode": lane.rows.mode}
            noted |= {"upsert_keys": lane.rows.keys, "upsert_order_by": lane.rows.order_by}
            noted["upsert_late_rows"] = lane.rows.late_rows
            noted |= {name: getattr(lane.rows, name) for name in _ROW_PARTS}
        return cls(**noted)

    @property
    def each(self) -> tuple[SinkLayout, ...]:
        """The layouts of all lanes."""
        return self.lanes or (self,)

    @classmethod
    def parse(cls, found: Mapping[str, Any]) -> SinkLayout:
        """Parse the output of `as_json`, perhaps of another version: unknown fields are ignored."""
        known = {each.name: found[each.name] for each in fields(cls) if each.name in found}
        lanes = tuple(map(cls.parse, known.get("lanes", ())))
        if known.get("update_columns") is not None:
            known["update_columns"] = tuple(known["update_columns"])
        return cls(**{**known, "upsert_keys": tuple(known.get("upsert_keys", ())), "lanes": lanes})

    def as_json(self) -> dict[str, Any]:
        """The fields as JSON; if there are lanes, only these and the places of dead letters."""
        letters = {name: value for name in _OF_DEAD_LETTERS if (value := getattr(self, name)) is not None}
        if self.lanes:
            return {"lanes": [lane.as_json() for lane in self.lanes], **letters}
        noted = {name: value for name, value in asdict(self).items() if name not in {"lanes", *_OF_DEAD_LETTERS}}
        return {**noted, "upsert_keys": list(self.upsert_keys), **letters}


_OF_DEAD_LETTERS = ("dead_letter_topic", "dead_letter_table")
_ROW_PARTS = ("delete_when", "update_columns", "upsert_where", "unchanged_when")
_RECORD_PARTS = ("topic", "key", "value", "headers", "partition", "key_format", "value_format")
