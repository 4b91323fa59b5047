"""Topics of an attempt, as tasks know them; a task asks the driver about a topic that a row names."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

from spark_2pc_sink.errors import BatchRetryError
from spark_2pc_sink.kafka.record_encoder import TopicLimits


@dataclass(frozen=True)
class TopicFacts:
    """The driver's facts about one topic; ``topic_id`` is '' if the broker has none (KIP-516)."""

    partition_count: int
    topic_id: str
    limits: TopicLimits


class TopicRefusedError(Exception):
    """The topic must not receive rows."""

    def __init__(self, rule: str, remedy: str) -> None:
        super().__init__(rule, remedy)
        self.rule = rule
        self.remedy = remedy


@dataclass
class Topics:
    """The topics of an attempt, for tasks. Can be pickled.

    Attributes:
        known: answers are added, so a task asks about each topic once.
        ask: sends a question to the driver and returns the answer; None if the driver has sent all topics.
    """

    known: dict[str, TopicFacts] = field(default_factory=dict)
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
