"""One driver's connection to the broker: what `TransactionClient` asks, request by request, each a choice point."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, TypeVar

from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import BatchRetryError, KafkaTimeoutError
from spark_2pc_sink.ids import ProducerIdAndEpoch, TopicPartition
from spark_2pc_sink.kafka.error_policy import kafka_error
from spark_2pc_sink.kafka.log_reader import CommitQuery, Marker
from spark_2pc_sink.recipe.kept_records import LogsView
from spark_2pc_sink.recipe.lost_batches import FoundCommits
from tests.simulation import faults
from tests.simulation.broker import LETTERS, SimBroker
from tests.simulation.record import Record
from tests.unit.fakes.client import ATTEMPTS_MAX, FakeClient, unanswered

if TYPE_CHECKING:
    from tests.simulation.world import World

_T = TypeVar("_T")
CLUSTER_ID: Final = "cluster"


class SimKafka(FakeClient):
    """`KafkaSide` in a world."""

    broker: SimBroker

    def __init__(self, world: World) -> None:
        super().__init__(world.broker)
        self._world = world

    @property
    def cluster_id(self) -> str:
        """Always the same."""
        return CLUSTER_ID

    def request(self, what: str, effect: Callable[[], _T]) -> _T:
        """One request of the running driver."""
        kind = faults.PRODUCE if what.startswith("produce") else faults.KAFKA
        return self._world.io(kind, what, effect, unanswered)

    def pause(self) -> None:
        """Time passes."""
        self._world.sleep(0.02)

    def open_since(self, partition: TopicPartition, *, producer_id: int, limit_ms: int) -> int | None:
        """DescribeProducers, asked once: what is not answered within ``limit_ms`` is not known."""
        what = f"open-since {producer_id} {partition} for {limit_ms} ms"
        return self.request(what, lambda: self.broker.open_since(partition, producer_id=producer_id))

    def find_marker(
        self,
        partition: TopicPartition,
        *,
        from_offset: int,
        producer_id: int,
        epochs: frozenset[int],
        limit_ms: int,
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
        """What is found in the topic.

        Raises:
            KafkaError: there is none.
        """
        found = self.request(what, lambda: None if self.broker.misses_topic() else effect())
        if found is None:
            raise kafka_error("Fetch", Code.UNKNOWN_TOPIC_OR_PARTITION)
        return found

    def produce(
        self, producer: ProducerIdAndEpoch, partition: TopicPartition, records: tuple[Record, ...], sequence: int
    ) -> int:
        """Produce of one batch, until it is acknowledged; its first offset.

        A task does this, not the driver; but the driver sends dead letters.

        Raises:
            KafkaError, KafkaTimeoutError: it was not.
            BatchRetryError: the broker had such a batch already, and this one was sent once: it was not written.
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
