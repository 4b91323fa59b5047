"""What the orders job of compose.yaml finds when it starts: its topic, and files with events. Safe to run again."""

from __future__ import annotations

import sys
from pathlib import Path

from confluent_kafka import KafkaError, KafkaException

from orders_events import write_events
from spark_2pc_sink.testing.kafka_broker import create_topic

EVENTS = Path("/var/lib/job/events")
FILES = 40


def main(bootstrap: str) -> None:
    """Create the topic and the files where they are not there yet."""
    try:
        create_topic(bootstrap, "orders", partitions=4)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise
    if len(list(EVENTS.glob("*.jsonl"))) < FILES:
        write_events(EVENTS, events=200_000, seed=7, files=FILES)


if __name__ == "__main__":
    main(sys.argv[1])
