"""The reading: records from the topics into the tally and into the staging sessions, once through.

The only loop over records. Whatever it does is done for millions of them, so it hands whole runs on where it can.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.verification.places import Places
from spark_2pc_sink.verification.record_digest import content_of
from spark_2pc_sink.verification.record_facts import RecordFacts
from spark_2pc_sink.verification.request import Progress
from spark_2pc_sink.verification.schema_values import ValueReader
from spark_2pc_sink.verification.staging import Chunk, RecordTexts, Staging
from spark_2pc_sink.verification.tally import Stretch, Tally
from spark_2pc_sink.verification.topic_reader import TopicReader, headers_of, offsets_of

if TYPE_CHECKING:
    from confluent_kafka import Message

Bounds = Mapping[TopicPartition, tuple[int, int]]

#: Of so many partitions records are looked at to learn their fields, and so many of each end of one.
SAMPLED_PARTITIONS_MAX = 32
SAMPLED_RECORDS = 200


class RecordStage:
    """Takes runs of records apart into chunks.

    Args:
        staging: takes the chunks.
        places: of the records.
        texts: makes what PostgreSQL reads of a record.
        wanted: whether records of a stretch of a partition are staged.
    """

    def __init__(
        self, staging: Staging, places: Places, texts: RecordTexts, wanted: Callable[[TopicPartition, Stretch], bool]
    ) -> None:
        self._staging = staging
        self._places = places
        self._texts = texts
        self._wanted = wanted
        self._chunk = Chunk()

    def take(
        self,
        partition: TopicPartition,
        messages: Sequence[Message],
        offsets: Sequence[int],
        values: Sequence[bytes | None],
        stretches: Iterable[Stretch],
    ) -> None:
        """Stage records of one partition, those of the stretches that are wanted."""
        for stretch in stretches:
            if not self._wanted(partition, stretch):
                continue
            part = slice(stretch.start, stretch.stop)
            texts = (
                [
                    self._texts.read(partition.topic, value) or self._texts.without_value(message.key())
                    for value, message in zip(values[part], messages[part], strict=True)
                ]
                if self._texts.plain
                else [self._text(partition, message) for message in messages[part]]
            )
            self._chunk.add(self._places.number(stretch.order, partition), offsets[part], texts)
            if self._chunk.full:
                self.flush()

    def flush(self) -> None:
        """Hand over what there is."""
        self._staging.put(self._chunk)
        self._chunk = Chunk()

    def _text(self, partition: TopicPartition, message: Message) -> bytes:
        offset, headers = message.offset() or 0, headers_of(message)
        return self._texts.make(partition, offset, message.key(), message.value(), headers)


def read_all(reader: TopicReader, bounds: Bounds, tally: Tally, stage: RecordStage | None, progress: Progress) -> None:
    """Read all records of some ranges of offsets.

    Args:
        reader: of the topics.
        bounds: first offset and end of each partition.
        tally: counts them.
        stage: takes them to the database; None where only the history is compared.
        progress: told how many offsets are read.
    """
    total = sum(max(end - start, 0) for start, end in bounds.values())
    reached = {partition: start for partition, (start, _) in bounds.items()}
    done = 0
    progress("reading records", 0, total)
    for partition, messages in reader.read(bounds):
        offsets = offsets_of(messages)
        values = [message.value() for message in messages]
        # Without `headers_of`: a call for each record would cost as much as its hash.
        contents = [
            content_of(message.key(), value, message.headers())  # type: ignore[arg-type]
            for message, value in zip(messages, values, strict=True)
        ]
        stretches = tally.take(partition, offsets, contents)
        if stage is not None:
            stage.take(partition, messages, offsets, values, stretches)
        done += offsets[-1] + 1 - reached[partition]
        reached[partition] = offsets[-1] + 1
        progress("reading records", done, total)
    if stage is not None:
        stage.flush()
    progress("reading records", total, total)


def stage_uncommitted(reader: TopicReader, bounds: Bounds, stage: RecordStage, tally: Tally) -> int:
    """Stage records that readers of committed records do not see; how many there were."""
    count = 0
    for partition, messages in reader.read(bounds, committed=False):
        offsets = offsets_of(messages)
        values = [message.value() for message in messages]
        stage.take(partition, messages, offsets, values, tally.of(partition).stretches(offsets))
        count += len(offsets)
    stage.flush()
    return count


def sample(
    reader: TopicReader, read: ValueReader, bounds: Bounds, *, committed: bool = True, tombstones: bool = False
) -> RecordFacts:
    """Learn the fields of records from both ends of some partitions.

    Args:
        reader: of the topics.
        read: makes JSON of a value.
        bounds: first offset and end of each partition.
        committed: those that readers of committed records see, and not all.
        tombstones: a record without a value tells nothing.
    """
    facts = RecordFacts()
    chosen = [(at, bound) for at, bound in sorted(bounds.items()) if bound[1] > bound[0]][:SAMPLED_PARTITIONS_MAX]
    ends: list[dict[TopicPartition, tuple[int, int]]] = [
        {at: (start, min(start + SAMPLED_RECORDS, end)) for at, (start, end) in chosen},
        {at: (max(end - SAMPLED_RECORDS, start), end) for at, (start, end) in chosen},
    ]
    for some in ends:
        for at, messages in reader.read(some, committed=committed):
            values = (message.value() for message in messages)
            facts.note(read(at.topic, value) for value in values if not (tombstones and value is None))
    return facts
