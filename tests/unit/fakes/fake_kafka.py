"""Kafka's side of a dual write, for recovery and the driver: a fake broker, and a script of what goes wrong.

The broker keeps the rules: which pair is handed out next, what EndTxn answers, which marker stands in a log. What is
scripted is what a test says of the world around it: answers that are lost, requests that fail, logs that tell
something else than they would.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Final, TypeVar

from spark_2pc_sink.errors import OutcomeUnknownError
from spark_2pc_sink.ids import EPOCH_BUMP_VERSION, ProducerIdAndEpoch, TopicPartition
from spark_2pc_sink.kafka.coordinator_calls import TransactionDescription
from spark_2pc_sink.kafka.error_policy import kafka_error
from spark_2pc_sink.kafka.log_reader import CommitQuery, Marker
from spark_2pc_sink.recipe.kept_records import LogsView
from spark_2pc_sink.recipe.lost_batches import FoundCommits
from spark_2pc_sink.reference.coordinator.states import Settings
from tests.unit.fakes.broker import FakeBroker, FakeClient, FakePartition
from tests.unit.fakes.coordinator import TRANSACTIONAL_ID

_T = TypeVar("_T")
PARTITION: Final = TopicPartition("orders", 0)
#: Where its log begins, so that a test can name an offset before it.
FIRST_OFFSET: Final = 5
#: Where a log ends of which nothing is said.
_FAR: Final = 1_000_000


class FakeKafka(FakeClient):
    """`KafkaSide`, and what tasks do.

    Attributes:
        before: called before each request with its name; may raise, or change this object.
        lose_answer_of: names of requests whose answer is lost after they took effect, once each.
        shown: what DescribeTransactions answers in place of the coordinator.
        logs: what partitions say whose logs differ, asked with the time that they may take.
        topic_ids: of topics that have one; those in ``gone`` do not exist.
        starts, ends: where logs begin and end, where that is to matter.
        found: what the logs show as committed since the row; ``queries`` is what was asked for.
        began: first offset of the open transaction in each partition; None where its leader has forgotten it.
    """

    cluster_id = "cluster-a"

    def __init__(self, **settings: Any) -> None:
        super().__init__(FakeBroker(Settings(**settings), {PARTITION: _log(PARTITION)}, first_producer_id=0))
        self.before: Callable[[str], None] | None = None
        self.lose_answer_of: list[str] = []
        self.calls: list[str] = []
        self.shown: TransactionDescription | None = None
        self.logs: dict[TopicPartition, Callable[[int], Marker]] = {}
        self.topic_ids: dict[str, str] = {}
        self.gone: set[str] = set()
        self.starts: dict[TopicPartition, int] = {}
        self.ends: dict[TopicPartition, int] = {}
        self.found = FoundCommits()
        self.queries: list[tuple[CommitQuery, list[str]]] = []
        self.began: dict[TopicPartition, int | Exception | None] = {}
        self.added: list[TopicPartition] = []

    # --- what a test asks, and does to it ------------------------------------------------------------------------

    @property
    def state(self) -> str:
        """Of the transactional id, as the coordinator shows it."""
        return self._shown_now().state

    @property
    def pair(self) -> ProducerIdAndEpoch | None:
        return self._shown_now().producer

    @property
    def committed(self) -> list[ProducerIdAndEpoch]:
        return self._ended(commit=True)

    @property
    def aborted(self) -> list[ProducerIdAndEpoch]:
        return self._ended(commit=False)

    def forget(self) -> None:
        """The coordinator knows nothing of the id any more."""
        self.broker.put(TRANSACTIONAL_ID, None)

    def time_out(self) -> None:
        """The coordinator aborts the open transaction by itself."""
        self.broker.now_ms += self.timeout_ms + 1
        self.broker.time_out()
        self.broker.drain()

    def lose_markers(self) -> None:
        """What stood in the logs is deleted."""
        self.broker.drain()
        self.broker.logs = {each: _log(each) for each in self.broker.logs}

    def produce(self, producer: ProducerIdAndEpoch, *partitions: TopicPartition) -> None:
        """A task's records arrive with ``producer``: the transaction is opened."""
        self.broker.drain()
        for partition in partitions or (PARTITION,):
            log = self.broker.logs.setdefault(partition, _log(partition))
            if self.transaction_version < EPOCH_BUMP_VERSION:
                self.broker.add(producer, (partition,))
            same = log.producers.entry(producer.producer_id).txn_start_offset is not None
            answered = self.broker.produce(producer, partition, ("row",) * 3, 3 * int(same))
            if answered.code:
                raise kafka_error("Produce", answered.code)

    # --- `KafkaSide` ---------------------------------------------------------------------------------------------

    def request(self, what: str, effect: Callable[[], _T]) -> _T:
        name = what.split(maxsplit=1)[0]
        self._called(name)
        reply = effect()
        if name in self.lose_answer_of:
            self.lose_answer_of.remove(name)
            raise OutcomeUnknownError(operation=name, deadline_ms=1, last_error="the answer was lost")
        return reply

    def refresh(self) -> None:
        self._called("refresh")
        super().refresh()

    def describe(self) -> TransactionDescription:
        found = super().describe()
        if self.began and found.partitions:
            found = replace(found, partitions=tuple(sorted({*found.partitions, *self.began})))
        return self.shown or found

    def stored_timeout_ms(self) -> int:
        metadata = self.broker.metadata()
        assert metadata is not None
        return metadata.timeout_ms

    def add_partitions(self, producer: ProducerIdAndEpoch, partitions: Iterable[TopicPartition]) -> None:
        self.added = list(partitions)
        for each in self.added:
            self.broker.logs.setdefault(each, _log(each))
        super().add_partitions(producer, self.added)

    def view_logs(self, partitions: Iterable[TopicPartition], *, starts: bool = False) -> LogsView:
        self._called("view_logs")
        wanted = [each for each in partitions if each.topic not in self.gone]
        return LogsView(
            topic_ids={each.topic: self.topic_ids.get(each.topic, "") for each in wanted},
            ends={each: self.ends.get(each, _FAR) for each in wanted},
            starts={each: self.starts.get(each, 0) for each in wanted} if starts else {},
        )

    def find_commits(self, query: CommitQuery, topics: Iterable[str], *, limit_ms: int, bytes_max: int) -> FoundCommits:
        self._called("find_commits")
        self.queries.append((query, sorted(topics)))
        return self.found

    def open_since(self, partition: TopicPartition, *, producer_id: int, limit_ms: int) -> int | None:
        self._called("open_since")
        if partition not in self.began:
            return self.broker.open_since(partition, producer_id=producer_id)
        began = self.began[partition]
        if isinstance(began, Exception):
            raise began
        return began

    def find_marker(
        self, partition: TopicPartition, *, from_offset: int, producer_id: int, epochs: frozenset[int], limit_ms: int
    ) -> Marker:
        self._called("find_marker")
        if partition in self.logs:
            return self.logs[partition](limit_ms)
        return self.broker.find_marker(partition, from_offset=from_offset, producer_id=producer_id, epochs=epochs)

    # --- parts ---------------------------------------------------------------------------------------------------

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if self.before is not None:
            self.before(name)

    def _shown_now(self) -> TransactionDescription:
        return self.shown or self.description_of(self.broker.describe())

    def _ended(self, *, commit: bool) -> list[ProducerIdAndEpoch]:
        self.broker.drain()
        found = [pair for log in self.broker.logs.values() for pair, _ in log.ended(commit=commit)]
        return list(dict.fromkeys(found))


def _log(partition: TopicPartition) -> FakePartition:
    return FakePartition(first_offset=FIRST_OFFSET if partition == PARTITION else 0)
