"""Reading a topic back, while the leaders of its partitions move."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from spark_2pc_sink.testing import DeadlineError, read_topic, topics
from tests.conftest import MakeTopic
from tests.harness.damage import produce
from tests.harness.providers import Broker


@pytest.fixture
def wrong_answers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Codes with which the next questions for offsets fail, as they do where a node is behind the others."""
    codes: list[int] = []

    class BehindOthers(Consumer):
        def get_watermark_offsets(self, partition: TopicPartition, *args: Any, **named: Any) -> Any:
            if codes:
                raise KafkaException(KafkaError(codes.pop()))
            return super().get_watermark_offsets(partition, *args, **named)

    monkeypatch.setattr(topics, "Consumer", BehindOthers)
    return codes


@pytest.mark.parametrize("code", [KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE])
def test_a_leader_that_has_moved_is_asked_again(
    kafka: Broker, topic: MakeTopic, wrong_answers: list[int], code: int
) -> None:
    name = topic()
    produce(kafka, name, [(None, b"1")])
    wrong_answers += [code, code]
    assert [record.value for record in read_topic(kafka.bootstrap, name)] == [b"1"]
    assert wrong_answers == []


def test_not_without_end(kafka: Broker, topic: MakeTopic, wrong_answers: list[int]) -> None:
    name = topic()
    wrong_answers += [KafkaError.NOT_LEADER_FOR_PARTITION] * 1000
    with pytest.raises(DeadlineError, match=f"no leader of {name} gave offsets within 0.5 s: .*NOT_LEADER"):
        read_topic(kafka.bootstrap, name, deadline_s=0.5)
