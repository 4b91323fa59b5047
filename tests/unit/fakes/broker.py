"""One broker of the fake Kafka: its coordinator, the real rules of leaders over lists, and a driver's view of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar, cast

from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import KafkaTimeoutError, OutcomeUnknownError
from spark_2pc_sink.ids import (
    EPOCH_BUMP_VERSION,
    TIMEOUT_NEVER_MS,
    PreparedTxnState,
    ProducerIdAndEpoch,
    TopicPartition,
    TransactionState,
)
from spark_2pc_sink.kafka.coordinator_calls import KEEP_REFUSED, InitializedProducer, TransactionDescription
from spark_2pc_sink.kafka.error_policy import COORDINATOR_BUSY, kafka_error
from spark_2pc_sink.kafka.log_reader import Marker
from spark_2pc_sink.kafka.transaction_client import EndTxnAnswer
from spark_2pc_sink.reference.coordinator.add_partitions import PRODUCE_ADD_VERSION, produce_code
from spark_2pc_sink.reference.coordinator.events import FULL_ACCESS, AddPartitionsToTxn, EndTxn, InitProducerId
from spark_2pc_sink.reference.coordinator.machine import describe_transaction
from spark_2pc_sink.reference.coordinator.plans import AddPartitionsReply, EndMarker, EndTxnReply, InitProducerIdReply
from spark_2pc_sink.reference.coordinator.states import Pair, Profile, Settings, TransactionMetadata
from spark_2pc_sink.reference.log.producer_state import ProducerStates, VerificationGuard
from spark_2pc_sink.wire.batch_format import CONTROL_BIT, MAGIC, NO_SEQUENCE, TRANSACTIONAL_BIT, BatchHeader
from spark_2pc_sink.wire.messages import describe_error
from tests.unit.fakes.coordinator import TRANSACTIONAL_ID, FakeCoordinator


@dataclass(frozen=True)
class Entry:
    """A batch of records, which may be anything, or an end marker (``commit`` is then not None)."""

    header: BatchHeader
    records: tuple[Any, ...] = ()
    commit: bool | None = None
    coordinator_epoch: int = -1

    @property
    def pair(self) -> ProducerIdAndEpoch:
        return ProducerIdAndEpoch(self.header.producer_id, self.header.producer_epoch)


def header_of(
    producer_id: int, epoch: int, *, sequence: int = NO_SEQUENCE, count: int = 1, offset: int = 0, control: bool = False
) -> BatchHeader:
    """The header of a transactional batch; what the leader's rules do not read is 0."""
    attributes = TRANSACTIONAL_BIT | (CONTROL_BIT if control else 0)
    return BatchHeader(offset, 0, 0, MAGIC, 0, attributes, count - 1, 0, 0, producer_id, epoch, sequence, count)


class FakePartition:
    """The log of one partition; `restarted` reads it again as a broker does that was killed."""

    def __init__(self, entries: list[Entry] | None = None, *, first_offset: int = 0) -> None:
        self.entries: list[Entry] = [] if entries is None else entries
        self._first_offset = first_offset
        self.producers = ProducerStates()
        for entry in self.entries:
            self._apply(entry)

    def restarted(self) -> FakePartition:
        """The same log, with what was in memory only forgotten."""
        return FakePartition(self.entries, first_offset=self._first_offset)

    @property
    def end_offset(self) -> int:
        return self.entries[-1].header.last_offset + 1 if self.entries else self._first_offset

    def append(
        self, header: BatchHeader, records: Sequence[Any], guard: VerificationGuard | None
    ) -> tuple[int, int, bool]:
        """Append as ``PartitionLog.append`` does: code, base offset, and whether it stood there before."""
        repeated = self.producers.duplicate(header)
        if repeated is not None:
            return Code.NONE, repeated.first_offset, True
        code = self.producers.check_batch(header, guard)
        if code is not Code.NONE:
            return code, -1, False
        written = header._replace(base_offset=self.end_offset)
        self._write(Entry(written, tuple(records)))
        return Code.NONE, written.base_offset, False

    def append_marker(self, marker: EndMarker) -> int:
        code = self.producers.check_marker(marker)
        if code is Code.NONE:
            header = header_of(marker.producer_id, marker.producer_epoch, offset=self.end_offset, control=True)
            self._write(Entry(header, (), marker.commit, marker.coordinator_epoch))
        return code

    def committed(self) -> list[tuple[Any, str]]:
        """What a read_committed reader sees: each record, and the pair that it was written with."""
        batches = [entry for ended in self._transactions(commit=True) for entry in ended]
        return [(record, str(entry.pair)) for entry in batches for record in entry.records]

    def ended(self, *, commit: bool) -> list[tuple[ProducerIdAndEpoch, tuple[int, int]]]:
        """Pair, first and last offset of the records of each transaction that ended so."""
        found = self._transactions(commit=commit)
        return [(ended[0].pair, (ended[0].header.base_offset, ended[-1].header.last_offset)) for ended in found]

    def _transactions(self, *, commit: bool) -> list[list[Entry]]:
        """The batches of each transaction that ended so, in the order of their ends."""
        found: list[list[Entry]] = []
        open_: dict[int, list[Entry]] = {}
        for entry in self.entries:
            if entry.commit is None:
                open_.setdefault(entry.header.producer_id, []).append(entry)
            elif (ended := open_.pop(entry.header.producer_id, [])) and entry.commit == commit:
                found.append(ended)
        return found

    def _write(self, entry: Entry) -> None:
        self.entries.append(entry)
        self._apply(entry)

    def _apply(self, entry: Entry) -> None:
        if entry.commit is None:
            self.producers.batch_written(entry.header)
        else:
            self.producers.marker_written(entry.header, coordinator_epoch=entry.coordinator_epoch)


#: Produce below transaction.version 2, and from there on.
_OLD_PRODUCE: Final = 11
_NEW_PRODUCE: Final = 13


class Produced(NamedTuple):
    """What Produce is answered for one partition."""

    code: int
    base_offset: int = -1
    #: It stood there before. On the wire only the offset tells, which the producer compares with what it has seen.
    duplicate: bool = False


class FakeBroker(FakeCoordinator):
    """One node.

    Args:
        first_producer_id: the first one that is handed out.

    Attributes:
        logs: the partitions; tests may put others in their place.
    """

    def __init__(self, settings: Settings, partitions: dict[TopicPartition, FakePartition], **coordinator: Any) -> None:
        super().__init__(settings, **coordinator)
        self.logs = partitions

    @property
    def bumps(self) -> bool:
        return self.state.settings.transaction_version >= EPOCH_BUMP_VERSION

    def init(
        self, *, timeout_ms: int, two_phase_commit: bool = False, keep_prepared: bool = False
    ) -> InitProducerIdReply:
        event = InitProducerId(
            transactional_id=TRANSACTIONAL_ID,
            timeout_ms=timeout_ms,
            enable_2pc=two_phase_commit,
            keep_prepared=keep_prepared,
        )
        return cast("InitProducerIdReply", self.ask(event))

    def end(self, producer: ProducerIdAndEpoch, *, commit: bool) -> EndTxnReply:
        """EndTxn, in the version that goes with transaction.version."""
        event = EndTxn(
            transactional_id=TRANSACTIONAL_ID,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            commit=commit,
            version=5 if self.bumps else 4,
        )
        return cast("EndTxnReply", self.ask(event))

    def add(self, producer: ProducerIdAndEpoch, partitions: Sequence[TopicPartition]) -> int:
        event = AddPartitionsToTxn(
            transactional_id=TRANSACTIONAL_ID,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            partitions=tuple(partitions),
            version=3,
        )
        reply = cast("AddPartitionsReply", self.ask(event))
        return max(code for _, code in reply.results)

    def describe(self) -> TransactionMetadata | Code:
        self.drain()
        return describe_transaction(self.state, TRANSACTIONAL_ID, FULL_ACCESS)

    def produce(
        self, producer: ProducerIdAndEpoch, partition: TopicPartition, records: Sequence[Any], sequence: int
    ) -> Produced:
        """One record batch, as ``handlers/produce.py`` takes it."""
        self.drain()
        log = self.logs[partition]
        header = header_of(producer.producer_id, producer.epoch, sequence=sequence, count=len(records))
        pair = Pair(producer.producer_id, producer.epoch)
        started = log.producers.start_verification(pair, sequence, supports_epoch_bump=self.bumps, now_ms=self.now_ms)
        if isinstance(started, VerificationGuard):
            code = self._verify(producer, partition, _NEW_PRODUCE if self.bumps else _OLD_PRODUCE)
        else:
            code = started
        if code:
            return Produced(code)
        if self.state.keeps(pair):
            return Produced(Code.INVALID_PRODUCER_EPOCH)
        return Produced(*log.append(header, records, started if isinstance(started, VerificationGuard) else None))

    def find_marker(
        self, partition: TopicPartition, *, from_offset: int, producer_id: int, epochs: frozenset[int]
    ) -> Marker:
        self.drain()
        log = self.logs[partition]
        for entry in log.entries:
            header = entry.header
            ours = header.producer_id == producer_id and header.producer_epoch in epochs
            if ours and entry.commit is not None and header.base_offset >= from_offset:
                return Marker.COMMIT if entry.commit else Marker.ABORT
        return Marker.MISSING if self.open_since(partition, producer_id=producer_id) is None else Marker.OPEN

    def open_since(self, partition: TopicPartition, *, producer_id: int) -> int | None:
        """What DescribeProducers shows of a producer."""
        return self.logs[partition].producers.entry(producer_id).txn_start_offset

    def crash(self) -> None:
        """Be killed, and started again from the logs."""
        self.restart()
        self.logs = {each: log.restarted() for each, log in self.logs.items()}

    def write_marker(self, marker: EndMarker, partition: TopicPartition) -> int:
        return self.logs[partition].append_marker(marker)

    def _verify(self, producer: ProducerIdAndEpoch, partition: TopicPartition, version: int) -> int:
        event = AddPartitionsToTxn(
            transactional_id=TRANSACTIONAL_ID,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            partitions=(partition,),
            verify_only=version < PRODUCE_ADD_VERSION,
        )
        reply = cast("AddPartitionsReply", self.do(event))
        return produce_code(version, reply.codes[partition])


_T = TypeVar("_T")
#: How often a request is repeated that is answered "ask again". One repetition lets the broker write its markers.
ATTEMPTS_MAX: Final = 10


class FakeClient:
    """It repeats what is answered "ask again", as the real client does, and judges nothing.

    Attributes:
        timeout_ms: what InitProducerId asks for without two-phase commit.
    """

    timeout_ms = 60_000
    own_timeout = False

    def __init__(self, broker: FakeBroker) -> None:
        self.broker = broker
        self._keep_refused = False

    @property
    def transaction_version(self) -> int:
        return self.broker.state.settings.transaction_version

    @property
    def two_phase_commit(self) -> bool:
        return self.broker.state.settings.two_phase_commit_enable

    @property
    def offers_keep_prepared(self) -> bool:
        """InitProducerId v6 is offered wherever two-phase commit is; only the answer tells the rest."""
        settings = self.broker.state.settings
        offered = settings.profile is not Profile.AS_RELEASED or settings.two_phase_commit_enable
        return offered and not self._keep_refused

    def request(self, what: str, effect: Callable[[], _T]) -> _T:
        """Send one request; a schedule, or a script, may have something against it."""
        raise NotImplementedError

    def ask(self, what: str, effect: Callable[[], _T], code_of: Callable[[_T], int]) -> _T:
        """Send one request until it is answered with anything but "ask again"."""
        for _ in range(ATTEMPTS_MAX):
            reply = self.request(what, effect)
            if code_of(reply) not in COORDINATOR_BUSY:
                return reply
            self.pause()
        raise unanswered()

    def pause(self) -> None:
        """Wait between two repetitions."""

    def refresh(self) -> None:
        self._keep_refused = False

    def prefetch_features(self) -> None:
        """As `refresh_features`."""

    def refresh_features(self) -> None:
        """What the broker is set to is known."""

    def describe(self) -> TransactionDescription:
        def code_of(found: TransactionMetadata | Code) -> int:
            return found if isinstance(found, Code) else Code.NONE

        return self.description_of(self.ask("describe", self.broker.describe, code_of))

    @staticmethod
    def description_of(found: TransactionMetadata | Code) -> TransactionDescription:
        if found is Code.TRANSACTIONAL_ID_NOT_FOUND:
            return TransactionDescription(TransactionState.UNKNOWN.value, None, 0)
        if isinstance(found, Code):
            raise kafka_error("DescribeTransactions", found)
        return TransactionDescription(
            found.state.label, ProducerIdAndEpoch(*found.pair), found.timeout_ms, tuple(sorted(found.partitions))
        )

    def init_producer_id(self, *, keep_prepared: bool = False) -> InitializedProducer:
        """InitProducerId, and where two-phase commit is granted, a look at the timeout that was stored."""
        granted = self.two_phase_commit
        reply = self.ask(
            "keep" if keep_prepared else "init",
            lambda: self.broker.init(timeout_ms=self.timeout_ms, two_phase_commit=granted, keep_prepared=keep_prepared),
            lambda answer: answer.code,
        )
        if reply.code != Code.NONE:
            self._keep_refused |= keep_prepared and reply.code in KEEP_REFUSED
            raise kafka_error("InitProducerId", reply.code)
        kept = reply.ongoing.producer_id >= 0
        ongoing = PreparedTxnState.of(ProducerIdAndEpoch(*reply.ongoing)) if kept else PreparedTxnState()
        timeout_ms = self.stored_timeout_ms() if granted else self.timeout_ms
        return InitializedProducer(
            ProducerIdAndEpoch(*reply.pair), ongoing, timeout_ms == TIMEOUT_NEVER_MS, timeout_ms, self.own_timeout
        )

    def stored_timeout_ms(self) -> int:
        return self.describe().timeout_ms

    def usable_producer(self) -> InitializedProducer:
        """InitProducerId, twice where the epochs of the id are used up."""
        initialized = self.init_producer_id()
        return self.init_producer_id() if initialized.producer.exhausted else initialized

    def add_partitions(self, producer: ProducerIdAndEpoch, partitions: Iterable[TopicPartition]) -> None:
        wanted = tuple(partitions)
        code = self.ask("add", lambda: self.broker.add(producer, wanted), lambda code: code)
        if code != Code.NONE:
            raise kafka_error("AddPartitionsToTxn", code)

    def end(self, producer: ProducerIdAndEpoch, *, commit: bool) -> EndTxnAnswer:
        try:
            reply = self.ask(
                f"end {producer}", lambda: self.broker.end(producer, commit=commit), lambda answer: answer.code
            )
        except KafkaTimeoutError as error:
            raise OutcomeUnknownError(operation="EndTxn", deadline_ms=1, last_error=error.last_error) from error
        return self.answer_of(reply)

    def answer_of(self, reply: EndTxnReply) -> EndTxnAnswer:
        """What the real client tells of an answer to EndTxn."""
        told = reply.code == Code.NONE and self.transaction_version >= EPOCH_BUMP_VERSION
        pair = ProducerIdAndEpoch(*reply.pair) if told else None
        return EndTxnAnswer(reply.code, describe_error(reply.code).name, pair)


def unanswered() -> KafkaTimeoutError:
    """The error of a request that was lost, or its reply."""
    return KafkaTimeoutError(operation="request", deadline_ms=1, last_error="the connection was lost")
