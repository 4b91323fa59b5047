"""What the driver tells the tasks of a batch: their plan, and what it knows of topics."""

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
    """What the driver has found out about one topic.

    Attributes:
        partition_count: how many partitions it has.
        topic_id: Kafka's id of it; '' where the broker has none (KIP-516).
        limits: what it allows.
    """

    partition_count: int
    topic_id: str
    limits: TopicLimits


class TopicRefusedError(Exception):
    """No row may go to a topic that it names.

    Args:
        rule: why.
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
        known: by name. What the driver answers is added, so that a task asks for each topic once.
        ask: sends a question to the driver and returns the answer; None where the driver has told all topics.
    """

    known: dict[str, TopicFacts] = field(default_factory=dict)
    ask: Callable[[bytes], bytes] | None = None

    def partition_count(self, topic: str) -> int:
        """How many partitions a topic has.

        Raises:
            TopicRefusedError: no row may go there.
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
