"""The broker of the simulation: two partitions, and the requests that a driver sends to it, each a choice point."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import BatchRetryError, KafkaTimeoutError
from spark_2pc_sink.ids import ProducerIdAndEpoch, TopicPartition
from spark_2pc_sink.kafka.error_policy import kafka_error
from spark_2pc_sink.kafka.log_reader import CommitQuery, Marker
from spark_2pc_sink.recipe.kept_records import LogsView
from spark_2pc_sink.recipe.lost_batches import CommittedTransaction, FoundCommits
from spark_2pc_sink.reference.coordinator.plans import InitProducerIdReply, SendMarkers
from spark_2pc_sink.reference.coordinator.states import AT_REST, StateId
from tests.simulation import faults
from tests.simulation.schedule import Profile
from tests.unit.fakes.broker import ATTEMPTS_MAX, FakeBroker, FakeClient, FakePartition, Produced, unanswered
from tests.unit.fakes.coordinator import BLOCK_SIZE, EFFECTS_MAX, FakeTransaction

if TYPE_CHECKING:
    from tests.simulation.world import World


@dataclass(frozen=True)
class Record:
    """One row of a batch; the same value is its row in the table.

    Args:
        version: counts the evaluations by Spark, where they differ.
    """

    batch_id: int
    partition: int
    number: int
    version: int = 0

    @property
    def place(self) -> tuple[int, int, int]:
        """Which row it is, whatever evaluation it comes from."""
        return (self.batch_id, self.partition, self.number)


TOPIC = "orders"
PARTITIONS = (TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1))
#: Of the topic of dead letters, where the profile has one.
LETTERS = TopicPartition("letters", 0)
#: How long a transaction may last without two-phase commit.
TIMEOUT_MS = 60_000


class SimBroker(FakeBroker):
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
        metadata = self.metadata()
        return metadata is not None and metadata.state is StateId.ONGOING

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
        if self.misses_topic():
            return LogsView(topic_ids={}, ends={})
        return LogsView(
            topic_ids={partition.topic: self.topic_id for partition in partitions},
            ends={partition: self.logs[partition].end_offset for partition in partitions},
            starts=dict.fromkeys(partitions, 0) if starts else {},
        )

    def find_commits(self, query: CommitQuery) -> FoundCommits:
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
        self.write_marker(effect, effect.partitions[0])
        return True


_T = TypeVar("_T")
CLUSTER_ID: Final = "cluster"


class SimKafka(FakeClient):
    broker: SimBroker

    def __init__(self, world: World) -> None:
        super().__init__(world.broker)
        self._world = world

    @property
    def cluster_id(self) -> str:
        return CLUSTER_ID

    def request(self, what: str, effect: Callable[[], _T]) -> _T:
        kind = faults.PRODUCE if what.startswith("produce") else faults.KAFKA
        return self._world.io(kind, what, effect, unanswered)

    def pause(self) -> None:
        self._world.sleep(0.02)

    def open_since(self, partition: TopicPartition, *, producer_id: int, limit_ms: int) -> int | None:
        """DescribeProducers, asked once: what is not answered within ``limit_ms`` is not known."""
        what = f"open-since {producer_id} {partition} for {limit_ms} ms"
        return self.request(what, lambda: self.broker.open_since(partition, producer_id=producer_id))

    def find_marker(
        self, partition: TopicPartition, *, from_offset: int, producer_id: int, epochs: frozenset[int], limit_ms: int
    ) -> Marker:
        """Fetch, as one request, which is repeated when it is lost: the real client does that until ``limit_ms``."""
        for _ in range(ATTEMPTS_MAX):
            try:
                return self._fetch(
                    "find-marker",
                    lambda: self.broker.find_marker(
                        partition, from_offset=from_offset, producer_id=producer_id, epochs=epochs
                    ),
                )
            except KafkaTimeoutError:
                continue
        raise KafkaTimeoutError(operation="find-marker", deadline_ms=limit_ms, last_error="the connection was lost")

    def view_logs(self, partitions: Iterable[TopicPartition], *, starts: bool = False) -> LogsView:
        """Metadata and ListOffsets, as one request."""
        wanted = tuple(partitions)
        return self.request("view-logs", lambda: self.broker.view_logs(wanted, starts=starts))

    def find_commits(self, query: CommitQuery, topics: Iterable[str], *, limit_ms: int, bytes_max: int) -> FoundCommits:
        """Fetch, as one request; what is not answered is not read."""
        try:
            return self._fetch("find-commits", lambda: self.broker.find_commits(query))
        except KafkaTimeoutError as error:
            self._world.people.logs_unread = True
            return FoundCommits(unread=(f"{', '.join(topics)} within {limit_ms} ms and {bytes_max} bytes ({error})",))

    def _fetch(self, what: str, effect: Callable[[], _T]) -> _T:
        """What is found in the topic."""
        found = self.request(what, lambda: None if self.broker.misses_topic() else effect())
        if found is None:
            raise kafka_error("Fetch", Code.UNKNOWN_TOPIC_OR_PARTITION)
        return found

    def produce(
        self, producer: ProducerIdAndEpoch, partition: TopicPartition, records: tuple[Record, ...], sequence: int
    ) -> int:
        """Produce of one batch, until it is acknowledged; its first offset.

        A task does this, not the driver; but the driver sends dead letters.
        """
        sends: list[bool] = []

        def send() -> tuple[int, int, bool]:
            sends.append(True)
            answer = self.broker.produce(producer, partition, records, sequence)
            if self._world.tracing:
                self._world.trace(f"  leader {partition} {producer} seq {sequence}: {answer}")
            return answer

        what = "send-letters" if partition == LETTERS else f"produce {partition.partition}"
        code, offset, duplicate = self.ask(f"{what} {producer}", send, lambda answer: answer[0])
        if code != Code.NONE:
            raise kafka_error("Produce", code)
        if duplicate and len(sends) == 1:
            raise BatchRetryError(reason="the broker had a batch with the sequence numbers of ours")
        return offset
