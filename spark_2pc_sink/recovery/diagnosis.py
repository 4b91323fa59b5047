"""Diagnosis: the state of both sides and its verdict; Kafka's logs are read if the coordinator cannot tell.

The rules are pure (`spark_2pc_sink.recipe`). This module collects their input, and changes neither side, but for
`LostCommits`: batches that Kafka has and the database lacks, and the operator's decision about them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Protocol

from jdbc_state import DECIDED, DONE, NONE, OWED, StateRow, StateStore
from jdbc_state.sink_log import sink_log
from spark_2pc_sink.choices import Facts, HaltCause, HaltError, remedies
from spark_2pc_sink.choices.choice import Fact
from spark_2pc_sink.clock import Clock, Deadline, now_ms
from spark_2pc_sink.errors import KafkaError, KafkaTimeoutError, RemoteProtocolError, StateStoreError
from spark_2pc_sink.ids import (
    TIMEOUT_NEVER_MS,
    BatchRange,
    PreparedTxnState,
    ProducerIdAndEpoch,
    TopicPartition,
    TransactionState,
)
from spark_2pc_sink.kafka.coordinator_calls import InitializedProducer, TransactionDescription
from spark_2pc_sink.kafka.log_reader import CommitQuery, Marker
from spark_2pc_sink.kafka.transaction_client import EndTxnAnswer
from spark_2pc_sink.options import CommonOptions
from spark_2pc_sink.plural import first_of
from spark_2pc_sink.recipe.kept_records import LogsView, WrittenRecords, find_lost_records, was_remade
from spark_2pc_sink.recipe.lost_batches import FoundCommits, LostBatches
from spark_2pc_sink.recipe.resolve import (
    Halt,
    KafkaView,
    OpenTransactionEnd,
    Resolution,
    RowStatus,
    RowView,
    Verdict,
    apply_operator_choice,
    database_behind,
    may_hide_commits,
    resolve,
)
from spark_2pc_sink.recovery.report import Action, RecoveryReport, duration, owed_reason, shown, sink_flags, view_of


class KafkaSide(Protocol):
    """The operations of recovery and the batch driver; `TransactionClient`, the real one, says what each does."""

    @property
    def cluster_id(self) -> str: ...

    @property
    def transaction_version(self) -> int: ...

    @property
    def offers_keep_prepared(self) -> bool: ...

    def refresh(self) -> None: ...
    def prefetch_features(self) -> None: ...
    def refresh_features(self) -> None: ...
    def describe(self) -> TransactionDescription: ...
    def init_producer_id(self, *, keep_prepared: bool = False) -> InitializedProducer: ...
    def usable_producer(self) -> InitializedProducer: ...
    def add_partitions(self, producer: ProducerIdAndEpoch, partitions: Iterable[TopicPartition]) -> None: ...
    def end(self, producer: ProducerIdAndEpoch, *, commit: bool) -> EndTxnAnswer: ...
    def open_since(self, partition: TopicPartition, *, producer_id: int, limit_ms: int) -> int | None: ...
    def find_marker(
        self, partition: TopicPartition, *, from_offset: int, producer_id: int, epochs: frozenset[int], limit_ms: int
    ) -> Marker: ...
    def find_commits(
        self, query: CommitQuery, topics: Iterable[str], *, limit_ms: int, bytes_max: int
    ) -> FoundCommits: ...
    def view_logs(self, partitions: Iterable[TopicPartition], *, starts: bool = False) -> LogsView: ...


#: Limits of time and bytes for reading logs for a message that a person waits for: more than most sinks write in the
#: minutes after a backup.
SCAN_MS_MAX: Final = 30_000
SCAN_BYTES_MAX: Final = 512 * 1024 * 1024
#: The same for a start without signs of a loss. Mostly only an end marker has been written since.
START_SCAN_MS_MAX: Final = 5_000
START_SCAN_BYTES_MAX: Final = 64 * 1024 * 1024
#: Records have timestamps of the driver's clock, the row those of the database.
_CLOCKS_DIFFER_MS: Final = 600_000


class LostCommits:
    """The batches of one sink that the database lacks, and the operator's decision about them."""

    def __init__(self, options: CommonOptions, kafka: KafkaSide, store: StateStore, *, topics: Iterable[str]) -> None:
        self._log = sink_log(__name__, options.transactional_id)
        self._kafka = kafka
        self._store = store
        self._topics = frozenset(topics)
        self._limit_ms = min(options.settle_deadline_ms, SCAN_MS_MAX)
        self.accepted: BatchRange | None = options.accept_loss

    def name(self, error: HaltError) -> HaltError:
        """Complete the error of a driver whose claim the database has lost with its other losses."""
        if error.cause is not HaltCause.COMMITS_LOST:
            return error
        try:
            row = self._store.read(error.transactional_id)
            return error if row is None else _named(error, self.look(row))
        except (KafkaError, KafkaTimeoutError, StateStoreError) as second:
            self._log.warning("could not determine the lost batches: %s", second)
            return error

    def shows(self, row: StateRow) -> bool:
        """Whether the logs show a commit that the row lacks, within the reading limits of a start."""
        found = self.look(row, limit_ms=START_SCAN_MS_MAX, bytes_max=START_SCAN_BYTES_MAX).found
        if found.unread:
            self._log.info("did not check whether the database lacks batches of %s", "; ".join(found.unread))
        return bool(found.transactions)

    def nothing_is_lost(self, row: StateRow) -> bool:
        """Whether the operator says that a commit which the row lacks is not of a batch; the logs must agree."""
        if self.accepted is None or len(self.accepted):
            return False
        self.look(row).check(self.accepted)
        return True

    def pass_over_unread(self, row: StateRow, actions: list[Action]) -> StateRow:
        """Continue after a named loss that only the job sees, as a gap: Kafka does not show it, the logs are unread.

        If they were read and show no loss, there is none, and a batch that was named nevertheless is still expected.
        """
        named = self.accepted
        # The database has a batch that Kafka is owed: it is not lost, and giving it up needs another decision, to drop.
        if named is None or not len(named) or row.status in (NONE, OWED):
            return row
        if row.status == DONE and row.batch_id == named.last:
            return row
        lost = self.look(row)
        return self.pass_over(row, lost, named, actions) if lost.found.unread else row

    def pass_gap(self, row: StateRow, batch_id: int, error: HaltError) -> StateRow:
        """Continue after the batches between the row's and the one that Spark has passed.

        Raises HaltError if they were not named, and ConfigurationError if others were; nothing was changed.
        """
        known = row.batch_id is not None
        if self.accepted is None and (not known or error.cause is HaltCause.NOT_HANDED_OVER):
            # Nothing could be counted, or nothing is lost: Spark has finished these batches without the sink.
            raise error
        # A row without batches has no offsets from which they could be counted.
        lost = self.look(row, batch_id) if known else LostBatches(first=0, came=batch_id)
        if self.accepted is None:
            raise _named(error, lost)
        actions: list[Action] = []
        row = self.pass_over(row, lost, self.accepted, actions)
        self._log.warning("%s", "; ".join(map(str, actions)))
        return row

    def pass_over(self, row: StateRow, lost: LostBatches, named: BatchRange, actions: list[Action]) -> StateRow:
        lost.check(named)
        transactions = lost.found.transactions
        newer = {str(partition): at for each in transactions for partition, at in each.offsets.items()}
        # A query that has adopted the row of another one counts its own batches from 0.
        foreign = row.batch_id is None and row.status != NONE and lost.came is None
        shown = self._kafka.describe().producer
        listed = "; ".join(map(str, transactions)) or "nothing"
        did = (
            f"continued without batches {named}, named by the operator as lost in the database; the logs have {listed}"
        )
        actions.append(Action("accept_loss", did))
        return self._store.accept_loss(
            row.transactional_id,
            row.generation,
            row.settled if shown is None else str(shown),
            batch_id=None if foreign else named.last,
            record_count=max([1, *(transaction.records for transaction in transactions[-1:])]),
            kafka_offsets={**row.kafka_offsets, **newer},
            detail={"did": did, "batches": str(named)},
        )

    def look(
        self, row: StateRow, came: int | None = None, *, limit_ms: int = SCAN_MS_MAX, bytes_max: int = SCAN_BYTES_MAX
    ) -> LostBatches:
        """Read what Kafka has committed since the row."""
        shown = self._kafka.describe().producer
        offsets = {TopicPartition.parse(name): last for name, (_, last) in row.kafka_offsets.items()}
        settled = PreparedTxnState(row.settled).producer
        # The newest epoch that a row without a decision may lack: its first recovery took the one after it.
        before = None if settled is None or not settled.epoch else replace(settled, epoch=settled.epoch - 1)
        settled_at = row.settled_at or row.decided_at
        query = CommitQuery(
            after=offsets,
            since_ms=None if settled_at is None else int(settled_at.timestamp() * 1000) - _CLOCKS_DIFFER_MS,
            newer_than=PreparedTxnState(row.prepared_transaction_state).producer or before,
            producer_ids=frozenset(pair.producer_id for pair in (settled, shown) if pair is not None),
        )
        topics = {*self._topics, *row.topic_ids, *(partition.topic for partition in offsets)}
        found = FoundCommits(unread=("the state row names no topic",))
        try:
            if topics:
                limit_ms = min(limit_ms, self._limit_ms)
                found = self._kafka.find_commits(query, topics, limit_ms=limit_ms, bytes_max=bytes_max)
        except (KafkaError, KafkaTimeoutError) as error:
            # An operator's decision must not wait for a topic; the message says that it was not read.
            found = FoundCommits(unread=(f"{', '.join(sorted(topics))} ({error})",))
        return LostBatches(0 if row.batch_id is None else row.batch_id + (row.status != OWED), found, came)


def _named(error: HaltError, lost: LostBatches) -> HaltError:
    explained = lost.explain(Halt(error.cause, error.reason, error.facts))
    return replace(error, reason=explained.reason, facts=explained.facts, remedies=())


def check_kept(kafka: KafkaSide, row: StateRow, resolution: Resolution) -> Resolution | Halt:
    """Return a verdict that ends a decided batch as done, or why it must not."""
    committed = resolution.verdict is Verdict.MARK_DONE
    if row.status != DECIDED or not (committed or resolution.verdict is Verdict.COMMIT):
        return resolution
    written = _written_by(row)
    logs = kafka.view_logs(written.offsets, starts=not committed)
    return find_lost_records(written, logs, committed=committed) or resolution


def explain_outcome_lost(kafka: KafkaSide, row: StateRow, halt: Halt) -> Halt:
    """Halt because no log tells how the row's transaction ended; if a topic was re-created, that is the cause."""
    written = _written_by(row)
    try:
        logs = kafka.view_logs(written.offsets)
    except (KafkaError, KafkaTimeoutError):
        return halt
    if not was_remade(written, logs):
        return halt
    return find_lost_records(written, logs, committed=True) or halt


def _written_by(row: StateRow) -> WrittenRecords:
    offsets = {TopicPartition.parse(name): at for name, at in row.kafka_offsets.items()}
    return WrittenRecords(row.batch_id, offsets, row.topic_ids)


#: Minimum time for each partition, however many were read before: a healthy one answers at once.
PARTITION_MS_MIN: Final = 1_000
#: How many undetermined partitions a message names: a row may have hundreds.
SHOWN_PARTITIONS_MAX: Final = 20
_BY_MARKER: Final = {
    Marker.COMMIT: (Verdict.MARK_DONE, "is COMMIT"),
    Marker.ABORT: (Verdict.MARK_OWED, "is ABORT"),
    # The other partitions are still read: the open transaction there may be another one.
    Marker.OPEN: (Verdict.WAIT, "is not written yet"),
}


def ask_the_log(kafka: KafkaSide, row: StateRow, deadline: Deadline) -> Resolution | Halt:
    """Read one partition after another until one tells how the transaction of a decided row ended.

    After the deadline no further partition is read; the first one always is. Without a marker the verdict is to wait,
    if the transaction is open in one; or a halt, with the result of each. Raises KafkaError or KafkaTimeoutError if no
    partition could be read because the cluster is unusable.
    """
    producer = PreparedTxnState(row.prepared_transaction_state).producer
    if producer is None or not row.kafka_offsets:
        reason = "the decided row names no partition whose log could be read"
        return Halt(HaltCause.OUTCOME_LOST, reason, Facts(known=frozenset({"readable"}), batch=row.batch_id))
    last_offsets = {TopicPartition.parse(name): last for name, (_, last) in row.kafka_offsets.items()}
    # All topics first, then their second partitions, and so on: if a topic is gone, so are all its partitions.
    ordered = sorted(last_offsets, key=lambda each: (each.partition, each.topic))
    findings: list[str] = []
    waiting: Resolution | None = None
    known: frozenset[Fact] = frozenset({"readable"})
    for number, partition in enumerate(ordered):
        if number and deadline.passed:
            findings.append(f"{len(ordered) - number} were not read within {deadline.limit_ms} ms")
            known = frozenset()
            break
        where = f"the control marker of {producer} in {partition} after offset {last_offsets[partition]}"
        # Half of the remaining time, all of it for the last one: a long log is read as far as that allows.
        left_ms = int(deadline.remaining_s * 1000) // (1 if number == len(ordered) - 1 else 2)
        try:
            marker = kafka.find_marker(
                partition,
                from_offset=last_offsets[partition] + 1,
                producer_id=producer.producer_id,
                epochs=frozenset({producer.epoch, producer.epoch + 1}),
                limit_ms=max(left_ms, PARTITION_MS_MIN),
            )
        except (KafkaError, KafkaTimeoutError, RemoteProtocolError) as error:
            # If the coordinator is unreachable too, its error is raised: no decision by a person is needed.
            kafka.describe()
            findings.append(f"{partition} cannot be read: {error}")
            known = frozenset()
            continue
        if marker not in _BY_MARKER:
            findings.append(f"{where} is missing: the log was deleted or compacted")
            continue
        verdict, marked = _BY_MARKER[marker]
        if verdict is not Verdict.WAIT:
            return Resolution(verdict, f"{where} {marked}", from_log=True)
        waiting = Resolution(verdict, f"{where} {marked}")
    if waiting is not None:
        return waiting
    reason = f"no partition tells how {producer} ended: {'; '.join(first_of(findings, SHOWN_PARTITIONS_MAX))}"
    return Halt(HaltCause.OUTCOME_LOST, reason, Facts(known=known, batch=row.batch_id))


#: What `dry_run` reports for a verdict that leads to an action.
_PLANNED: Final = {
    Verdict.COMMIT: Action("commit", "recovery will commit Kafka transaction {row.prepared_transaction_state}"),
    Verdict.ABORT: Action("abort", "recovery will abort Kafka transaction {kafka.producer}, which was never decided"),
    Verdict.TAKE_OPEN: Action("take_open", f"recovery will {Verdict.TAKE_OPEN.value}"),
    Verdict.MARK_DONE: Action("note_done", f"recovery will {Verdict.MARK_DONE.value}"),
    Verdict.MARK_OWED: Action("note_owed", f"recovery will {Verdict.MARK_OWED.value}"),
    Verdict.WAIT: Action("wait", f"recovery will {Verdict.WAIT.value}"),
}


@dataclass(kw_only=True)
class Diagnosis:
    """Reads both sides of one transactional id; may be used repeatedly. Logs are read for ``settle_deadline_ms``."""

    options: CommonOptions
    kafka: KafkaSide
    store: StateStore
    clock: Clock
    topics: Iterable[str] = ()
    open_transaction: OpenTransactionEnd | None = None

    def __post_init__(self) -> None:
        #: Batches that Kafka has and the database lacks.
        self.losses: LostCommits = LostCommits(self.options, self.kafka, self.store, topics=self.topics)

    def view_kafka(self) -> KafkaView:
        return self.view_of(self.kafka.describe())

    def view_of(self, described: TransactionDescription) -> KafkaView:
        """The coordinator's state, from an answer that was already received."""
        try:
            state = TransactionState(described.state)
        except ValueError as error:
            unknown = f"{self.options.transactional_id!r} in state {described.state!r}"
            raise RemoteProtocolError(
                peer="the transaction coordinator", detail=f"it shows {unknown}, which this version does not know"
            ) from error
        return KafkaView(
            state=state,
            producer=described.producer,
            transaction_version=self.kafka.transaction_version,
            cluster_id=self.kafka.cluster_id,
            keeps_prepared=self.kafka.offers_keep_prepared,
            began_ms=described.start_time_ms,
            never_expires=described.timeout_ms == TIMEOUT_NEVER_MS,
        )

    def resolve(self, row: StateRow | None, kafka: KafkaView) -> Resolution | Halt:
        """The verdict on both sides, never `Verdict.ASK_THE_LOG`."""
        view = RowView(RowStatus.NONE) if row is None else view_of(row)
        resolution = apply_operator_choice(
            view, kafka, resolve(view, kafka, adopt=self.options.adopt), self.open_transaction
        )
        if row is not None and isinstance(resolution, Halt) and resolution.cause is HaltCause.DATABASE_BEHIND:
            nothing_lost = self.losses.nothing_is_lost(row)
            resolution = resolve(view, kafka, adopt=self.options.adopt, nothing_lost=nothing_lost)
        if isinstance(resolution, Halt):
            asks = resolution.cause is HaltCause.OPEN_TRANSACTION and kafka.state is TransactionState.ONGOING
            return located(resolution, began_at(self.kafka, self.deadline())) if asks else resolution
        if row is None:
            return resolution
        if resolution.verdict is Verdict.ASK_THE_LOG:
            told = ask_the_log(self.kafka, row, self.deadline())
            if isinstance(told, Halt):
                return explain_outcome_lost(self.kafka, row, told)
            resolution = told
        if may_hide_commits(view_of(row), kafka, resolution) and self.losses.shows(row):
            return database_behind()
        return check_kept(self.kafka, row, resolution)

    def dry_run(self) -> RecoveryReport:
        """Report what a recovery would do, without claiming and without changing either side."""
        self.kafka.refresh()
        return self.judge(self.store.read_standing(self.options.transactional_id), self.view_kafka())

    def judge(self, row: StateRow | None, kafka: KafkaView) -> RecoveryReport:
        """Like `dry_run`, for state that was already read; Kafka's logs are read if it is not enough."""
        resolution = self.resolve(row, kafka)
        passed = None
        if row is not None and isinstance(resolution, Halt) and resolution.cause is HaltCause.DATABASE_BEHIND:
            passed, batches = self.losses.accepted, self.losses.look(row)
            if passed is not None:
                batches.check(passed)
            resolution = batches.explain(resolution)
        lost: tuple[Action, ...] = ()
        if row is not None and row.rebuilt_from is not None:
            again = f"would rebuild the lost state row from line {row.rebuilt_from} of its history ({shown(row)})"
            lost = (Action("rebuild_row", again),)
        report = RecoveryReport(
            transactional_id=self.options.transactional_id,
            settled=False,
            known=row is not None,
            dry_run=True,
            before=None if lost else row,
            row=row,
            kafka=kafka,
            actions=lost,
            # For how long Kafka has had an open transaction that the row does not name.
            prepared_s=None if row and kafka.producer == view_of(row).prepared.producer else open_s(kafka),
            elsewhere=row is not None and row.cluster_id not in (None, kafka.cluster_id),
            reason=resolution.reason,
        )
        if passed is not None:
            return replace(report, actions=(Action("accept_loss", f"would continue without batches {passed}"),))
        if isinstance(resolution, Halt):
            report = replace(report, cause=resolution.cause, facts=resolution.facts)
            if row is None:
                since = "" if report.prepared_s is None else f", open for {duration(report.prepared_s)}"
                unknown = f"the state table and its history have nothing for this id; Kafka has {kafka}{since}"
                report = replace(report, reason=f"{unknown}: {resolution.reason}")
            return replace(report, remedies=remedies(resolution.cause, report.incident, sink_flags(self.options)))
        planned = _PLANNED.get(resolution.verdict)
        if planned is not None:
            action = replace(planned, text=planned.text.format(row=row, kafka=kafka))
            return replace(report, actions=(*lost, action))
        if row is not None and row.status == RowStatus.OWED:
            return replace(report, reason=owed_reason(row)).with_remedies(sink_flags(self.options))
        return replace(report, settled=resolution.verdict is Verdict.NOTHING and not lost)

    def deadline(self) -> Deadline:
        return Deadline(self.clock, self.options.settle_deadline_ms)


def with_choices(report: RecoveryReport, options: CommonOptions) -> RecoveryReport:
    undecided = report.condition in {"in_doubt", "owed"} and report.cause is None
    return report.with_remedies(sink_flags(options)) if undecided else report


def open_s(kafka: KafkaView) -> float | None:
    """Seconds since the open transaction began; None if none is open. Two clocks may differ, hence the 0."""
    if kafka.state is not TransactionState.ONGOING or kafka.began_ms is None:
        return None
    return max(0.0, (now_ms() - kafka.began_ms) / 1000)


def began_at(kafka: KafkaSide, deadline: Deadline) -> dict[TopicPartition, int | str]:
    """First offset of the open transaction in each of its partitions, or why it is unknown."""
    described = kafka.describe()
    found: dict[TopicPartition, int | str] = {}
    producer = described.producer
    if producer is None:
        return found
    for partition in sorted(described.partitions):
        found[partition] = "not read, out of time"
        if deadline.passed:
            continue
        limit_ms = max(int(deadline.remaining_s * 1000) // 2, PARTITION_MS_MIN)
        try:
            offset = kafka.open_since(partition, producer_id=producer.producer_id, limit_ms=limit_ms)
        except (KafkaError, KafkaTimeoutError) as error:
            found[partition] = f"cannot be read: {error}"
        else:
            found[partition] = "no record yet" if offset is None else offset
    return found


def located(halt: Halt, found: Mapping[TopicPartition, int | str]) -> Halt:
    """The halt for an open transaction, with the places of its records."""
    places = [
        f"{partition} from offset {began}" if isinstance(began, int) else f"{partition} ({began})"
        for partition, began in found.items()
    ]
    written = ", ".join(first_of(places, SHOWN_PARTITIONS_MAX)) or "no partition yet"
    return replace(halt, reason=f"{halt.reason}. It wrote to {written}")
