"""One driver's connection to the broker: what `TransactionClient` asks, request by request."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, TypeVar

from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import BatchRetryError, KafkaTimeoutError, OutcomeUnknownError
from spark_2pc_sink.ids import TIMEOUT_NEVER_MS, PreparedTxnState, ProducerIdAndEpoch, TopicPartition, TransactionState
from spark_2pc_sink.producer.commit_scan import CommitQuery
from spark_2pc_sink.producer.error_policy import COORDINATOR_BUSY, kafka_error
from spark_2pc_sink.producer.log_reader import Marker
from spark_2pc_sink.producer.transaction_client import EndTxnAnswer, InitializedProducer, TransactionDescription
from spark_2pc_sink.recipe.kept_records import LogsView
from spark_2pc_sink.recipe.lost_batches import FoundCommits
from spark_2pc_sink.wire.error_codes import describe_error
from tests.simulation import faults
from tests.simulation.partition import Record

if TYPE_CHECKING:
    from tests.simulation.world import World

_T = TypeVar("_T")
CLUSTER_ID: Final = "cluster"
#: How often a request is repeated that is answered "ask again". One repetition lets the broker write its markers.
_ATTEMPTS_MAX = 10


class SimKafka:
    """`KafkaSide`, as the real client behaves: it repeats what is answered "ask again", and judges nothing."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._broker = world.broker
        self._keep_refused = False

    @property
    def cluster_id(self) -> str:
        """Always the same."""
        return CLUSTER_ID

    @property
    def transaction_version(self) -> int:
        """As the profile says."""
        return self._world.profile.transaction_version

    @property
    def offers_keep_prepared(self) -> bool:
        """InitProducerId v6 is offered wherever two-phase commit is; only the answer tells the rest."""
        profile = self._world.profile
        return (profile.keep_prepared or profile.two_phase_commit) and not self._keep_refused

    def refresh(self) -> None:
        """Forget what was refused."""
        self._keep_refused = False

    def describe(self) -> TransactionDescription:
        """DescribeTransactions."""
        found = self._ask("describe", self._broker.describe, lambda reply: reply.code)
        if found.code == Code.TRANSACTIONAL_ID_NOT_FOUND:
            return TransactionDescription(TransactionState.UNKNOWN.value, None, 0)
        if found.code != Code.NONE:
            raise kafka_error("DescribeTransactions", found.code)
        pair = ProducerIdAndEpoch(found.pair.producer_id, found.pair.epoch)
        return TransactionDescription(found.state, pair, found.timeout_ms, found.partitions)

    def init_producer_id(self, *, keep_prepared: bool = False) -> InitializedProducer:
        """InitProducerId, and where two-phase commit is granted, a look at the timeout that was stored."""
        granted = self._world.profile.two_phase_commit
        reply = self._ask(
            "init-keep" if keep_prepared else "init",
            lambda: self._broker.init(two_phase_commit=granted, keep_prepared=keep_prepared),
            lambda answer: answer.code,
        )
        if reply.code != Code.NONE:
            self._keep_refused |= keep_prepared and reply.code == Code.UNSUPPORTED_VERSION
            raise kafka_error("InitProducerId", reply.code)
        pair = ProducerIdAndEpoch(reply.pair.producer_id, reply.pair.epoch)
        kept = reply.ongoing.producer_id >= 0
        ongoing = PreparedTxnState(f"{reply.ongoing.producer_id}:{reply.ongoing.epoch}" if kept else "")
        timeout_ms = self.describe().timeout_ms if granted else self._broker.timeout_ms
        return InitializedProducer(pair, ongoing, timeout_ms == TIMEOUT_NEVER_MS, timeout_ms)

    def usable_producer(self) -> InitializedProducer:
        """InitProducerId, twice where the epochs of the id are used up."""
        initialized = self.init_producer_id()
        return self.init_producer_id() if initialized.producer.exhausted else initialized

    def add_partitions(self, producer: ProducerIdAndEpoch, partitions: Iterable[TopicPartition]) -> None:
        """AddPartitionsToTxn."""
        wanted = tuple(partitions)
        code = self._ask("add", lambda: self._broker.add(producer, wanted), lambda code: code)
        if code != Code.NONE:
            raise kafka_error("AddPartitionsToTxn", code)

    def end(self, producer: ProducerIdAndEpoch, *, commit: bool) -> EndTxnAnswer:
        """EndTxn."""
        try:
            reply = self._ask(
                f"end {producer}", lambda: self._broker.end(producer, commit=commit), lambda answer: answer.code
            )
        except KafkaTimeoutError as error:
            raise OutcomeUnknownError(operation="EndTxn", deadline_ms=1, last_error=error.last_error) from error
        told = reply.code == Code.NONE and self.transaction_version >= 2
        pair = ProducerIdAndEpoch(reply.pair.producer_id, reply.pair.epoch) if told else None
        return EndTxnAnswer(reply.code, describe_error(reply.code).name, pair)

    def open_since(self, partition: TopicPartition, *, producer_id: int, limit_ms: int) -> int | None:
        """DescribeProducers, asked once: what is not answered within ``limit_ms`` is not known."""
        what = f"open-since {producer_id} {partition} for {limit_ms} ms"
        return self._world.io(
            faults.KAFKA, what, lambda: self._broker.open_since(partition, producer_id=producer_id), _unanswered
        )

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
        for _ in range(_ATTEMPTS_MAX):
            try:
                return self._world.io(
                    faults.KAFKA,
                    "find-marker",
                    lambda: self._broker.find_marker(
                        partition, from_offset=from_offset, producer_id=producer_id, epochs=epochs
                    ),
                    _unanswered,
                )
            except KafkaTimeoutError:
                continue
        raise KafkaTimeoutError(operation="find-marker", deadline_ms=limit_ms, last_error="the connection was lost")

    @property
    def bootstrap_servers(self) -> str:
        """For messages only."""
        return "broker:9092"

    def view_logs(self, partitions: Iterable[TopicPartition], *, starts: bool = False) -> LogsView:
        """Metadata and ListOffsets, as one request."""
        wanted = tuple(partitions)
        return self._world.io(
            faults.KAFKA, "view-logs", lambda: self._broker.view_logs(wanted, starts=starts), _unanswered
        )

    def find_commits(self, query: CommitQuery, topics: Iterable[str], *, limit_ms: int, bytes_max: int) -> FoundCommits:
        """Fetch, as one request; what is not answered is not read."""
        try:
            return self._world.io(faults.KAFKA, "find-commits", lambda: self._broker.find_commits(query), _unanswered)
        except KafkaTimeoutError as error:
            return FoundCommits(unread=(f"{', '.join(topics)} within {limit_ms} ms and {bytes_max} bytes ({error})",))

    def produce(
        self, producer: ProducerIdAndEpoch, partition: TopicPartition, records: tuple[Record, ...], sequence: int
    ) -> int:
        """Produce of one batch, until it is acknowledged; its first offset. A task does this, not the driver.

        Raises:
            KafkaError, KafkaTimeoutError: it was not.
            BatchRetryError: the broker had such a batch already, and this one was sent once: it was not written.
        """
        sends: list[bool] = []

        def send() -> tuple[int, int, bool]:
            sends.append(True)
            answer = self._broker.produce(producer, partition, records, sequence)
            if self._world.tracing:
                self._world.trace(f"  leader {partition} {producer} seq {sequence}: {answer}")
            return answer

        code, offset, duplicate = self._ask(
            f"produce {partition.partition} {producer}", send, lambda answer: answer[0], kind=faults.PRODUCE
        )
        if code != Code.NONE:
            raise kafka_error("Produce", code)
        if duplicate and len(sends) == 1:
            raise BatchRetryError(reason="the broker had a batch with the sequence numbers of ours")
        return offset

    def _ask(
        self, what: str, request: Callable[[], _T], code_of: Callable[[_T], int], *, kind: str = faults.KAFKA
    ) -> _T:
        for _ in range(_ATTEMPTS_MAX):
            reply = self._world.io(kind, what, request, _unanswered)
            if code_of(reply) not in COORDINATOR_BUSY:
                return reply
            self._world.sleep(0.02)
        raise _unanswered()


def _unanswered() -> KafkaTimeoutError:
    return KafkaTimeoutError(operation="request", deadline_ms=1, last_error="the connection was lost")
