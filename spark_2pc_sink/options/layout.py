"""Layout of a sink: where its records and rows go, and how both are made from a batch.

A job stores it in the database with its claim, so that comparing both sides needs no arguments. Connections are not
part of it, so it has no secret unless a person has written one into an expression.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Final, Literal

from spark_2pc_sink.options.outputs import Lane, RecordShape, RowShape
from spark_2pc_sink.options.settings import shown_name


@dataclass(frozen=True, kw_only=True)
class SinkLayout(RecordShape, RowShape):
    """The options of a sink that determine its data on either side; see `Records` and `Rows` for each.

    Expressions are as the user wrote them, and None if the sink chose by the columns of the batch. Names are those of
    the sink. What `RecordShape` or `RowShape` declares is noted without being named here.
    """

    #: None if the rows go to no table.
    table: str | None = None
    columns: Mapping[str, str] | None = None
    mode: Literal["append", "upsert", "insert_ignore"] = "append"
    upsert_keys: tuple[str, ...] = ()
    upsert_order_by: str | None = None
    upsert_superseded: str = "send_first"
    upsert_late_rows: str = "replace"
    update_columns: tuple[str, ...] | None = None
    #: False if no records are made from the rows.
    records: bool = True
    #: Rows of an output, and their filter; None for the rows of the batch, and for all rows.
    rows: str | None = None
    where: str | None = None
    #: For a sink with several outputs, one layout for each lane; empty for one topic and one table.
    lanes: tuple[SinkLayout, ...] = ()
    dead_letter_topic: str | None = None
    #: As quoted SQL; None if dead letters go to no topic, and they are not compared.
    dead_letter_table: str | None = None

    @classmethod
    def of(cls, lanes: tuple[Lane, ...], *, dead_letters: tuple[str, str] | None = None) -> SinkLayout:
        """The layout of a sink; ``dead_letters`` are their topic and table, None without a topic."""
        one = len(lanes) == 1 and lanes[0].alone
        layout = cls._of_lane(lanes[0]) if one else cls(lanes=tuple(map(cls._of_lane, lanes)))
        if dead_letters is None:
            return layout
        return replace(layout, dead_letter_topic=dead_letters[0], dead_letter_table=dead_letters[1])

    @classmethod
    def _of_lane(cls, lane: Lane) -> SinkLayout:
        known = {item.name for item in fields(cls)}
        noted: dict[str, Any] = {
            shown_name(item): getattr(output, item.name)
            for output in (lane.records, lane.rows)
            if output is not None
            for item in fields(output)
            if shown_name(item) in known
        }
        return cls(**noted | {"records": lane.records is not None, **asdict(lane.source)})

    @property
    def each(self) -> tuple[SinkLayout, ...]:
        return self.lanes or (self,)

    @classmethod
    def parse(cls, found: Mapping[str, Any]) -> SinkLayout:
        """Parse the output of `as_json`, perhaps of another version: unknown fields are ignored."""
        known = {each.name: found[each.name] for each in fields(cls) if each.name in found}
        for name in ("upsert_keys", "update_columns"):
            if known.get(name) is not None:
                known[name] = tuple(known[name])
        return cls(**{**known, "lanes": tuple(map(cls.parse, known.get("lanes", ())))})

    def as_json(self) -> dict[str, Any]:
        """The fields as JSON; if there are lanes, only these and the places of dead letters."""
        letters = {name: value for name in _OF_DEAD_LETTERS if (value := getattr(self, name)) is not None}
        if self.lanes:
            return {"lanes": [lane.as_json() for lane in self.lanes], **letters}
        noted = {name: value for name, value in asdict(self).items() if name not in {"lanes", *_OF_DEAD_LETTERS}}
        return {**noted, "upsert_keys": list(self.upsert_keys), **letters}


_OF_DEAD_LETTERS: Final = ("dead_letter_topic", "dead_letter_table")
