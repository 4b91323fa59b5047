"""The broker of the simulation: the fake one, with two partitions, and what happens to it by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spark_2pc_sink.codes import Code
from spark_2pc_sink.ids import ProducerIdAndEpoch, TopicPartition
from spark_2pc_sink.kafka.log_reader import CommitQuery
from spark_2pc_sink.recipe.kept_records import LogsView
from spark_2pc_sink.recipe.lost_batches import CommittedTransaction, FoundCommits
from spark_2pc_sink.reference.coordinator.plans import InitProducerIdReply, SendMarkers
from spark_2pc_sink.reference.coordinator.states import AT_REST, TransactionState
from tests.simulation.profiles import Profile
from tests.simulation.record import Record
from tests.unit.fakes.broker import FakeBroker, Produced
from tests.unit.fakes.coordinator import BLOCK_SIZE, EFFECTS_MAX, FakeTransaction, marker_of
from tests.unit.fakes.partition import FakePartition

TOPIC = "orders"
PARTITIONS = (TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1))
#: Of the topic of dead letters, where the profile has one.
LETTERS = TopicPartition("letters", 0)
#: How long a transaction may last without two-phase commit.
TIMEOUT_MS = 60_000


class SimBroker(FakeBroker):
    """One node.

    Args:
        profile: what it grants.
    """

    def __init__(self, profile: Profile) -> None:
        partitions = (*PARTITIONS, LETTERS) if profile.letters else PARTITIONS
        super().__init__(profile.settings, {each: FakePartition() for each in partitions})
        self.answered: list[str] = []
        #: The topic was deleted, and nobody has made it anew; and somebody has asked for it since.
        self.topic_gone = False
        self.topic_missed = False
        self._topics_made = 1
        self._standing: tuple[object, tuple[bool, bool]] = (None, (False, False))
        if profile.first_epoch is not None:
            self.know(FakeTransaction(BLOCK_SIZE, profile.first_epoch, state="Empty", start_time_ms=-1))

    @property
    def topic_id(self) -> str:
        """Of the topic as it was made last; that of dead letters has the same."""
        return f"{TOPIC}-{self._topics_made}"

    @property
    def standing(self) -> tuple[bool, bool]:
        """Whether a transaction is open that the coordinator would end by itself; whether none is open or ending."""
        state, known = self._standing
        if state is not self.state:
            metadata = self.metadata()
            at_rest = metadata is not None and metadata.state in AT_REST and metadata.pending is None
            may_time_out = metadata is not None and self.has_open and not metadata.two_phase_commit
            known = may_time_out, at_rest
            self._standing = self.state, known
        return known

    @property
    def has_open(self) -> bool:
        """Whether a transaction is open."""
        metadata = self.metadata()
        return metadata is not None and metadata.state is TransactionState.ONGOING

    def init(
        self, *, timeout_ms: int = TIMEOUT_MS, two_phase_commit: bool = False, keep_prepared: bool = False
    ) -> InitProducerIdReply:
        """InitProducerId; each pair that it hands out is kept. With apache/kafka#22704 keeping hands out none."""
        reply = super().init(timeout_ms=timeout_ms, two_phase_commit=two_phase_commit, keep_prepared=keep_prepared)
        if reply.code == Code.NONE and reply.pair != reply.ongoing:
            self.answered.append(f"{reply.pair.producer_id}:{reply.pair.epoch}")
        return reply

    def add(self, producer: ProducerIdAndEpoch, partitions: Sequence[TopicPartition]) -> int:
        """AddPartitionsToTxn; of none where the topic is gone."""
        return int(Code.UNKNOWN_TOPIC_OR_PARTITION) if self.misses_topic() else super().add(producer, partitions)

    def produce(
        self, producer: ProducerIdAndEpoch, partition: TopicPartition, records: Sequence[Any], sequence: int
    ) -> Produced:
        """Produce; refused where the topic is gone."""
        if self.misses_topic():
            return Produced(Code.UNKNOWN_TOPIC_OR_PARTITION)
        return super().produce(producer, partition, records, sequence)

    def open_since(self, partition: TopicPartition, *, producer_id: int) -> int | None:
        """DescribeProducers; not known where the topic is gone."""
        return None if self.misses_topic() else super().open_since(partition, producer_id=producer_id)

    def view_logs(self, partitions: Sequence[TopicPartition], *, starts: bool) -> LogsView:
        """What ``kafka/log_reader.py`` finds."""
        if self.misses_topic():
            return LogsView(topic_ids={}, ends={})
        return LogsView(
            topic_ids={partition.topic: self.topic_id for partition in partitions},
            ends={partition: self.logs[partition].end_offset for partition in partitions},
            starts=dict.fromkeys(partitions, 0) if starts else {},
        )

    def find_commits(self, query: CommitQuery) -> FoundCommits:
        """What ``kafka/log_reader.py`` finds."""
        self.drain()
        found: dict[ProducerIdAndEpoch, dict[TopicPartition, tuple[int, int]]] = {}
        for partition, log in self.logs.items():
            for pair, at in log.ended(commit=True):
                known = query.newer_than
                later = (
                    pair.epoch > known.epoch
                    if known and known.producer_id == pair.producer_id
                    else (pair.producer_id in query.producer_ids)
                )
                if later and at[0] > query.after.get(partition, -1):
                    found.setdefault(pair, {})[partition] = at
        own = None if query.newer_than is None else query.newer_than.producer_id
        ordered = sorted(found, key=lambda pair: (pair.producer_id != own, pair))
        return FoundCommits(
            tuple(
                CommittedTransaction(pair, sum(last - first + 1 for first, last in found[pair].values()), found[pair])
                for pair in ordered
            )
        )

    # --- what happens by itself --------------------------------------------------------------------------------

    def force_terminate(self) -> None:
        """``kafka-transactions.sh forceTerminateTransaction``: a plain InitProducerId, until it is answered."""
        for _ in range(EFFECTS_MAX):
            if self.init().code != Code.CONCURRENT_TRANSACTIONS:
                return
        raise AssertionError("a transaction that does not end")

    def delete_topic(self) -> list[tuple[Record, str]]:
        """The topic is deleted, with what readers have seen of it."""
        self.drain()
        seen = self.committed()
        # Markers that come for it go nowhere: what is here now is replaced when the topic is made anew.
        self.logs = {each: FakePartition() for each in PARTITIONS}
        self.topic_gone = True
        return seen

    def create_topic(self, *, first_offset: int = 0) -> None:
        """The topic is made anew, and others have written so much to it."""
        self.logs = {each: FakePartition(first_offset=first_offset) for each in PARTITIONS}
        self._topics_made += 1
        self.topic_gone = self.topic_missed = False

    def misses_topic(self) -> bool:
        """Whether a request that is for the topic finds none."""
        self.topic_missed |= self.topic_gone
        return self.topic_gone

    def committed(self) -> list[tuple[Record, str]]:
        """What a read_committed reader sees of the outputs: each record, and the pair that it was written with."""
        return [found for at, log in self.logs.items() if at != LETTERS for found in log.committed()]

    def letters(self) -> list[tuple[Record, str]]:
        """The same of the topic of dead letters, in the order of its log."""
        return self.logs[LETTERS].committed() if LETTERS in self.logs else []

    def write_one_marker(self) -> bool:
        """Write the marker of one partition only, the others come later; False where none is to be written."""
        effect = self.effects[0] if self.effects else None
        if not isinstance(effect, SendMarkers) or len(effect.partitions) < 2:
            return False
        self.write_marker(marker_of(effect), effect.partitions[0])
        return True
