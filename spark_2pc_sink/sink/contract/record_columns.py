"""The columns of a batch's rows of which a task makes records: names that driver and tasks share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spark_2pc_sink.options.outputs import Part

TOPIC = "_2pc_topic"
PARTITION = "_2pc_partition"
KEY = "_2pc_key"
VALUE = "_2pc_value"
HEADERS = "_2pc_headers"
#: True for a record without its value.
TOMBSTONE = "_2pc_tombstone"
#: The columns that may have a format, and what users call them.
PARTS: Final[Mapping[str, Part]] = {KEY: "key", VALUE: "value"}
#: True for a row of which no record is made: another one of its upsert key has a greater order.
SUPERSEDED = "_2pc_superseded"
