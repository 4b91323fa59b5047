"""Driver's input for the tasks of a batch: their plan, and known topics."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from spark_2pc_sink.errors import BatchRetryError
from spark_2pc_sink.producer.record_encoder import TopicLimits

if TYPE_CHECKING:
    from collections.abc import Callable

    from spark_2pc_sink.producer.record_encoder import EncodingOptions
    from spark_2pc_sink.serialisation.serialiser import Serialiser
    from spark_2pc_sink.sink.contract.record_json import JsonField
    from spark_2pc_sink.sink.stream.task_stream import StreamAddress
    from spark_2pc_sink.sink.table.copy_encoder import CopyPlan


@dataclass(frozen=True)
class TopicFacts:
    """The driver's facts about one topic.

    Attributes:
        partition_count: number of partitions.
        topic_id: Kafka's topic id; '' if the broker has none (KIP-516).
        limits: limits on its records.
    """

    partition_count: int
    topic_id: str
    limits: TopicLimits


class TopicRefusedError(Exception):
    """The topic must not receive rows.

    Args:
        rule: the reason.
        remedy: what the user can do.
    """

    def __init__(self, rule: str, remedy: str) -> None:
        super().__init__(rule, remedy)
        self.rule = rule
        self.remedy = remedy


@dataclass
class Topics:
    """The topics of an attempt, for tasks. Can be pickled.

    Attributes:
        known: facts by topic name. Driver answers are added, so a task asks about each topic once.
        ask: sends a question to the driver and returns the answer; None if the driver has sent all topics.
    """

    known: dict[str, TopicFacts] = field(default_factory=dict)
    ask: Callable[[bytes], bytes] | None = None

    def partition_count(self, topic: str) -> int:
        """The number of partitions of a topic.

        Raises:
            TopicRefusedError: rows must not go there.
            BatchRetryError: the driver gave no answer.
        """
        return self._facts(topic).partition_count

    def limits_of(self, topic: str) -> TopicLimits:
        """The limits of a topic; raises as `partition_count`."""
        return self._facts(topic).limits

    def _facts(self, topic: str) -> TopicFacts:
        if topic not in self.known:
            if self.ask is None:
                raise BatchRetryError(reason=f"topic {topic!r} is not among the topics of this attempt")
            self.known[topic] = _read_answer(self.ask(topic.encode()))
        return self.known[topic]


def write_answer(found: TopicFacts | TopicRefusedError) -> bytes:
    """The driver's answer to a question about a topic."""
    if isinstance(found, TopicRefusedError):
        return json.dumps({"rule": found.rule, "remedy": found.remedy}).encode()
    return json.dumps(asdict(found)).encode()


def _read_answer(answer: bytes) -> TopicFacts:
    found = json.loads(answer)
    if "rule" in found:
        raise TopicRefusedError(**found)
    return TopicFacts(found["partition_count"], found["topic_id"], TopicLimits(**found["limits"]))


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
