"""Kafka's side of a dual write, in memory: one transactional id, one log, the rules of the coordinator.

It keeps the rules that recovery decides by: the epoch is bumped by InitProducerId and, on transaction.version 2, by
EndTxn; a pair that is not the newest is refused; an end is repeated with success and never turned round. It can be
told to fail, or to lose an answer after the effect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import KafkaError, OutcomeUnknownError
from spark_2pc_sink.ids import TIMEOUT_NEVER_MS, PreparedTxnState, ProducerIdAndEpoch, TopicPartition
from spark_2pc_sink.producer.commit_scan import CommitQuery
from spark_2pc_sink.producer.log_reader import Marker
from spark_2pc_sink.producer.transaction_client import EndTxnAnswer, InitializedProducer, TransactionDescription
from spark_2pc_sink.recipe.kept_records import LogsView
from spark_2pc_sink.recipe.lost_batches import FoundCommits
from spark_2pc_sink.wire.error_codes import describe_error


@dataclass
class FakeClock:
    """Time that passes only when somebody waits, or when a test says so."""

    now: float = 0.0

    def now_s(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += max(seconds, 0.001)


@dataclass
class FakeKafka:
    """See the module's docstring; fields may be set by tests."""

    cluster_id: str = "cluster-a"
    transaction_version: int = 2
    offers_keep_prepared: bool = False
    two_phase_commit: bool = False
    timeout_ms: int = 60_000
    own_timeout: bool = False
    state: str = "Unknown"
    pair: ProducerIdAndEpoch | None = None
    next_pair: ProducerIdAndEpoch | None = None
    markers: dict[ProducerIdAndEpoch, Marker] = field(default_factory=dict)
    #: What partitions say whose logs differ, asked with the time that they may take.
    logs: dict[TopicPartition, Callable[[int], Marker]] = field(default_factory=dict)
    #: Of topics that have one; those in `gone` do not exist.
    topic_ids: dict[str, str] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    #: Where logs begin and end, where that is to matter.
    starts: dict[TopicPartition, int] = field(default_factory=dict)
    ends: dict[TopicPartition, int] = field(default_factory=dict)
    #: What the logs show as committed since the row, and what was asked for.
    found: FoundCommits = field(default_factory=FoundCommits)
    queries: list[tuple[CommitQuery, list[str]]] = field(default_factory=list)
    #: First offset of the open transaction in each partition; None where its leader has forgotten it.
    began: dict[TopicPartition, int | Exception | None] = field(default_factory=dict)
    committed: list[ProducerIdAndEpoch] = field(default_factory=list)
    aborted: list[ProducerIdAndEpoch] = field(default_factory=list)
    added: list[TopicPartition] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    #: Called before each request with its name; may raise, or change this object.
    before: Callable[[str], None] | None = None
    #: Names of requests whose answer is lost after they took effect, once each.
    lose_answer_of: list[str] = field(default_factory=list)

    def refresh(self) -> None:
        self._called("refresh")

    def describe(self) -> TransactionDescription:
        self._called("describe")
        partitions = tuple(sorted(self.began)) if self.state == "Ongoing" else ()
        return TransactionDescription(self.state, self.pair, self.timeout_ms, partitions)

    def init_producer_id(self, *, keep_prepared: bool = False) -> InitializedProducer:
        self._called("keep" if keep_prepared else "init")
        if keep_prepared and not self.offers_keep_prepared:
            raise KafkaError(
                api="InitProducerId", code=int(Code.UNSUPPORTED_VERSION), name="UNSUPPORTED_VERSION", detail=""
            )
        if keep_prepared and self.state == "Ongoing" and self.pair is not None:
            self.next_pair = (self.next_pair or self.pair).bumped()
            return self._initialized(self.next_pair, PreparedTxnState.of(self.pair))
        if self.state == "Ongoing":
            self._abort()
        newest = self.pair
        if newest is None:
            self.pair = ProducerIdAndEpoch(0, 0)
        elif newest.exhausted:
            self.pair = ProducerIdAndEpoch(newest.producer_id + 1, 0)
        else:
            self.pair = newest.bumped()
        self.state = "Empty"
        return self._initialized(self.pair, PreparedTxnState())

    def usable_producer(self) -> InitializedProducer:
        initialized = self.init_producer_id()
        return self.init_producer_id() if initialized.producer.exhausted else initialized

    def add_partitions(self, producer: ProducerIdAndEpoch, partitions: Iterable[TopicPartition]) -> None:
        self._called("add")
        self.added = list(partitions)

    def end(self, producer: ProducerIdAndEpoch, *, commit: bool) -> EndTxnAnswer:
        self._called("end")
        answer = self._end(producer, commit=commit)
        if "end" in self.lose_answer_of:
            self.lose_answer_of.remove("end")
            raise OutcomeUnknownError(operation="EndTxn", deadline_ms=1, last_error="the answer was lost")
        return answer

    @property
    def bootstrap_servers(self) -> str:
        return "broker:9092"

    def view_logs(self, partitions: Iterable[TopicPartition], *, starts: bool = False) -> LogsView:
        self._called("view_logs")
        wanted = [each for each in partitions if each.topic not in self.gone]
        return LogsView(
            topic_ids={each.topic: self.topic_ids.get(each.topic, "") for each in wanted},
            ends={each: self.ends.get(each, 1_000_000) for each in wanted},
            starts={each: self.starts.get(each, 0) for each in wanted} if starts else {},
        )

    def find_commits(self, query: CommitQuery, topics: Iterable[str], *, limit_ms: int, bytes_max: int) -> FoundCommits:
        self._called("find_commits")
        self.queries.append((query, sorted(topics)))
        return self.found

    def open_since(self, partition: TopicPartition, *, producer_id: int, limit_ms: int) -> int | None:
        self._called("open_since")
        assert self.pair is not None
        assert producer_id == self.pair.producer_id
        began = self.began[partition]
        if isinstance(began, Exception):
            raise began
        return began

    def find_marker(
        self,
        partition: TopicPartition,
        *,
        from_offset: int,
        producer_id: int,
        epochs: frozenset[int],
        limit_ms: int,
    ) -> Marker:
        self._called("find_marker")
        if partition in self.logs:
            return self.logs[partition](limit_ms)
        for epoch in sorted(epochs):
            marker = self.markers.get(ProducerIdAndEpoch(producer_id, epoch))
            if marker is not None:
                return marker
        ours = self.state == "Ongoing" and self.pair is not None and self.pair.producer_id == producer_id
        return Marker.OPEN if ours else Marker.MISSING

    # What tasks do.

    def produce(self, producer: ProducerIdAndEpoch) -> None:
        """Records arrive with ``producer``: the transaction is opened."""
        if producer != self.pair:
            raise KafkaError(
                api="Produce", code=int(Code.INVALID_PRODUCER_EPOCH), name="INVALID_PRODUCER_EPOCH", detail=""
            )
        self.state = "Ongoing"

    def _end(self, producer: ProducerIdAndEpoch, *, commit: bool) -> EndTxnAnswer:
        own = self.next_pair or self.pair
        done = "CompleteCommit" if commit else "CompleteAbort"
        repeated = producer == self.pair or (self.transaction_version == 2 and producer.bumped() == self.pair)
        if self.state == done and repeated:
            return self._answer(Code.NONE, self.pair)
        if self.state != "Ongoing":
            return self._answer(Code.INVALID_TXN_STATE, None)
        if producer != own or self.pair is None:
            return self._answer(Code.PRODUCER_FENCED, None)
        self.committed.append(self.pair) if commit else self.aborted.append(self.pair)
        self.markers[self.pair.bumped()] = Marker.COMMIT if commit else Marker.ABORT
        self.state = done
        self.pair = own.bumped() if self.transaction_version == 2 else self.pair
        self.next_pair = None
        return self._answer(Code.NONE, self.pair)

    def _abort(self) -> None:
        if self.pair is not None:
            self.aborted.append(self.pair)
            self.pair = (self.next_pair or self.pair).bumped()
            self.markers[self.pair] = Marker.ABORT
        self.next_pair = None
        self.state = "CompleteAbort"

    def time_out(self) -> None:
        """The coordinator aborts the open transaction by itself."""
        self._abort()

    def _answer(self, code: Code, pair: ProducerIdAndEpoch | None) -> EndTxnAnswer:
        shown = pair if self.transaction_version == 2 else None
        return EndTxnAnswer(int(code), describe_error(int(code)).name, shown)

    def _initialized(self, pair: ProducerIdAndEpoch, ongoing: PreparedTxnState) -> InitializedProducer:
        timeout = TIMEOUT_NEVER_MS if self.two_phase_commit else self.timeout_ms
        return InitializedProducer(pair, ongoing, self.two_phase_commit, timeout, self.own_timeout)

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if self.before is not None:
            self.before(name)
