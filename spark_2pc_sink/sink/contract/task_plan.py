"""The plan that the driver gives to the tasks of a batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spark_2pc_sink.producer.encoding_options import EncodingOptions
    from spark_2pc_sink.serialisation.serialiser import Serialiser
    from spark_2pc_sink.sink.contract.record_json import JsonField
    from spark_2pc_sink.sink.contract.topics import Topics
    from spark_2pc_sink.sink.stream.task_stream import StreamAddress
    from spark_2pc_sink.sink.table.copy_encoder import CopyPlan


@dataclass(frozen=True)
class TaskIdentity:
    """Which task this is, as Spark says.

    Attributes:
        task: the Spark partition id.
        task_attempt: Spark's id of the task attempt, which no other has.
    """

    task: int
    task_attempt: int


@dataclass(frozen=True)
class RowEncoderPlan:
    """How tasks encode the rows of a lane for its table. Can be pickled.

    Attributes:
        columns: how each column is checked and encoded.
        row_key: the column that tells rows apart in error texts; None for the upsert keys.
    """

    columns: CopyPlan
    row_key: str | None


@dataclass(frozen=True)
class LanePlan:
    """How tasks treat the rows of one lane. Can be pickled.

    Attributes:
        index: of the lane.
        packed: the column that has the rows, as a struct or as an array of structs; None where they are the rows that
            Spark hands over.
        sends: False where no records are made of the rows.
        told_as: the table of rows without records, which a digest of their own tells; None where records tell them.
        topic: of the records; None when every row names its own.
        row_encoder: how rows become COPY bytes; None without a table, and for a resend, when the database has them.
        json: the columns whose JSON is the value; None where the value is a column.
        key_column: the column that is the key, or whose text is; None where the key is a column of its own.
        leaves_out: the column `record_columns.SUPERSEDED` says which rows have no record.
        guarded: columns that are refused where they are no text.
        serialisers: encode the columns of key and value that have a schema.
    """

    index: int = 0
    packed: str | None = None
    sends: bool = True
    told_as: str | None = None
    topic: str | None = None
    row_encoder: RowEncoderPlan | None = None
    json: tuple[JsonField, ...] | None = None
    key_column: str | None = None
    leaves_out: bool = False
    guarded: tuple[str, ...] = ()
    serialisers: Mapping[str, Serialiser] = field(default_factory=dict)


@dataclass(frozen=True)
class TaskPlan:
    """Everything that a task needs to know. Can be pickled; it has no login and no address but the driver's.

    Attributes:
        transactional_id: the sink's id, for the log.
        encoding: how records are encoded.
        lanes: what becomes of the rows; a resend only makes the digest of those of lanes without records.
        topics: what the driver knows of topics.
        timestamp_ms: CreateTime of every record of the batch, milliseconds since 1970.
        stream: where what the task makes is sent; None for the driver, and where only a digest is asked for.
    """

    transactional_id: str
    encoding: EncodingOptions
    lanes: tuple[LanePlan, ...]
    topics: Topics
    timestamp_ms: int
    stream: StreamAddress | None = None
