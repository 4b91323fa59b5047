"""The plan of a batch's tasks, made by the driver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spark_2pc_sink.kafka.record_encoder import EncodingOptions
    from spark_2pc_sink.serialisation.serialiser import Serialiser
    from spark_2pc_sink.sink.records.record_json import JsonField
    from spark_2pc_sink.sink.records.topics import Topics
    from spark_2pc_sink.sink.rows.copy_encoder import CopyPlan
    from spark_2pc_sink.sink.stream.task_stream import StreamAddress


@dataclass(frozen=True)
class TaskIdentity:
    """Identity of a task, as reported by Spark.

    Attributes:
        task: Spark's partition id.
        task_attempt: Spark's unique id of the task attempt.
    """

    task: int
    task_attempt: int


@dataclass(frozen=True)
class RowEncoderPlan:
    """How tasks encode the rows of a lane for its table. Can be pickled.

    Attributes:
        columns: how each column is checked and encoded.
        row_key: column that identifies rows in error texts; None for the upsert keys.
    """

    columns: CopyPlan
    row_key: str | None


@dataclass(frozen=True)
class LanePlan:
    """How tasks treat the rows of one lane. Can be pickled.

    Attributes:
        index: index of the lane.
        packed: column that contains the rows, as a struct or as an array of structs; None if they are the rows passed
            by Spark.
        sends: False if no records are made of the rows.
        told_as: table of rows without records, which have a digest of their own; None if records identify them.
        topic: topic of the records; None if every row names its own.
        row_encoder: how rows become COPY bytes; None without a table, and for a resend, when the database has them.
        json: columns whose JSON is the value; None if the value is a column.
        key_column: column that is the key, or whose text is; None if the key has its own column.
        leaves_out: column `record_columns.SUPERSEDED` marks rows without a record.
        guarded: columns refused if they are not valid text.
        serialisers: serialisers for key and value columns that have a schema.
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
    """Everything that a task needs to know. Can be pickled; contains no credentials and only the driver's address.

    Attributes:
        transactional_id: the sink's id, for the log.
        encoding: how records are encoded.
        lanes: how rows are processed; a resend only computes the digest of lanes without records.
        topics: the driver's facts about topics.
        timestamp_ms: CreateTime of every record of the batch, milliseconds since 1970.
        stream: where the task sends its output; None for the driver, and if only a digest is requested.
    """

    transactional_id: str
    encoding: EncodingOptions
    lanes: tuple[LanePlan, ...]
    topics: Topics
    timestamp_ms: int
    stream: StreamAddress | None = None
