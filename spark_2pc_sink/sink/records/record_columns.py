"""What driver and tasks share about records: columns from which they are built, keys, and an attempt's topics."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

import pyarrow as pa

from spark_2pc_sink.errors import BatchRetryError
from spark_2pc_sink.kafka.record_encoder import TopicLimits
from spark_2pc_sink.wire.arrow_layout import ArrowColumn

TOPIC = "_2pc_topic"
PARTITION = "_2pc_partition"
KEY = "_2pc_key"
VALUE = "_2pc_value"
HEADERS = "_2pc_headers"
#: True for a record without a value.
TOMBSTONE = "_2pc_tombstone"
#: The columns that may have a format, with their names for users.
PARTS: Final[Mapping[str, Literal["key", "value"]]] = {KEY: "key", VALUE: "value"}
#: True for a row without a record, because another row of its upsert key has a greater order.
SUPERSEDED = "_2pc_superseded"

#: Spark types whose values are used as key bytes unchanged.
BYTES_TYPES: Final = frozenset({"string", "binary"})
#: Spark types that Arrow casts to exactly the same text as Spark.
ARROW_TEXT_TYPES: Final = frozenset({"boolean", "tinyint", "smallint", "int", "bigint"})


def key_expressions(kind: str) -> tuple[str, ...]:
    """SQL, with {} for a column, equivalent to `key_values` of that column; empty if only Spark can compute it."""
    as_it_is = ("{}",) if kind in BYTES_TYPES else ()
    # Binary is excluded: Spark's conversion of invalid UTF-8 to text is its own.
    as_text = ("CAST({} AS STRING)",) if kind == "string" or kind in ARROW_TEXT_TYPES else ()
    return as_it_is + as_text


def key_values(column: ArrowColumn) -> ArrowColumn:
    """The column itself if it holds text or bytes, else its text; null stays null."""
    kind = column.type
    numbers = pa.types.is_integer(kind) or pa.types.is_boolean(kind)
    return column.cast(pa.string()) if numbers else column


@dataclass(frozen=True)
class TopicFacts:
    """The driver's facts about one topic; ``topic_id`` is '' if the broker has none (KIP-516)."""

    partition_count: int
    topic_id: str
    limits: TopicLimits


@dataclass(eq=False)
class TopicRefusedError(Exception):
    """The topic must not receive rows."""

    rule: str
    remedy: str


@dataclass
class Topics:
    """The topics of an attempt, for tasks. Can be pickled."""

    known: dict[str, TopicFacts] = field(default_factory=dict)
    #: Sends a question to the driver and returns the answer, which is added to ``known``; None if all are known.
    ask: Callable[[bytes], bytes] | None = None

    def partition_count(self, topic: str) -> int:
        """Raises TopicRefusedError if rows must not go there, BatchRetryError if the driver gave no answer."""
        return self._facts(topic).partition_count

    def limits_of(self, topic: str) -> TopicLimits:
        """Raises as `partition_count`."""
        return self._facts(topic).limits

    def _facts(self, topic: str) -> TopicFacts:
        if topic not in self.known:
            if self.ask is None:
                raise BatchRetryError(reason=f"topic {topic!r} is not among the topics of this attempt")
            found = json.loads(self.ask(topic.encode()))
            if "rule" in found:
                raise TopicRefusedError(found["rule"], found["remedy"])
            self.known[topic] = TopicFacts(found["partition_count"], found["topic_id"], TopicLimits(**found["limits"]))
        return self.known[topic]
