"""Hanging transactions, ending transactions manually (KIP-664), and the commands that do it.

A partition leader knows that a transaction is open, but not its owner; a coordinator knows in which partitions it will
write end markers. A transaction hangs if the first says "open" and no coordinator has the partition on its list.
Its age alone proves nothing: a transaction with two-phase commit may be old and healthy.

No broker checks an abort marker against the coordinator (KIP-664's own check of the start offset was never released).
So a marker written into a transaction that its coordinator knows makes the two disagree: readers skip the records, and
the producer still "commits" them successfully (datastax/starlight-for-kafka#79). Only this module prevents that: it
checks twice, the partition and every coordinator, the second time right before the marker.

Force-terminate can be recorded in a sink's database: who ordered it, when and why, and its result. Kafka's
coordinator and the database share no transaction. So there are two rows: the first records the operator's intent,
and is written BEFORE the coordinator is asked; the second records the result. If the second is
missing the process died in between, or the database was lost: `spark-2pc transactions describe` then shows the id's
state.

Which command ends an open transaction depends on its owner. A sink's transaction is ended by ``spark-2pc recover``, as
the sink's database has decided; any other way may leave Kafka without a batch that the database has. The database
identifies its sinks by the ids and pairs in its state table. Without one the owner is unknown, and a transaction
without a timeout (two-phase commit, KIP-939) may be a sink's.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from jdbc_state import StateRow, StateStore
from jdbc_state.actions import FORCE_TERMINATE
from jdbc_state.sink_log import sink_log
from spark_2pc_sink.choices.choice import RECOVER, STATUS, remedy
from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import (
    AbortRefusedError,
    ConfigurationError,
    DualWriteError,
    KafkaTimeoutError,
    OutcomeUnknownError,
    StateStoreError,
)
from spark_2pc_sink.ids import ENDING_STATES, PreparedTxnState, ProducerIdAndEpoch, TopicPartition, TransactionState
from spark_2pc_sink.kafka.error_policy import LEADER_MOVED, kafka_error
from spark_2pc_sink.kafka.transaction_queries import (
    AbortedOpenTransaction,
    ListFilter,
    OpenTransaction,
    TerminatedTransaction,
    TransactionDetails,
    TransactionQueries,
)
from spark_2pc_sink.options.settings import refused
from spark_2pc_sink.recovery.report import NamedConnection
from spark_2pc_sink.wire.messages import KafkaPart, describe_error, initialized_pair


def open_transactions(producers: Mapping[TopicPartition, Sequence[KafkaPart]]) -> dict[OpenTransaction, int]:
    found = {
        OpenTransaction(
            topic=partition.topic,
            partition=partition.partition,
            producer_id=state.producer_id,
            producer_epoch=state.producer_epoch,
            coordinator_epoch=state.coordinator_epoch,
            start_offset=state.current_txn_start_offset,
        ): state.last_timestamp
        for partition, states in producers.items()
        for state in states
        if state.current_txn_start_offset >= 0
    }
    return dict(sorted(found.items(), key=lambda item: item[0].identity))


def why_hanging(found: OpenTransaction, details: TransactionDetails | None) -> str | None:
    """Why no coordinator will end an open transaction; None if one will."""
    if details is None or details.producer_id != found.producer_id:
        return f"no coordinator knows producer id {found.producer_id}"
    owner = f"transactional id {details.transactional_id!r}"
    # In no other state are partitions of a transaction open.
    if details.state not in ENDING_STATES | {TransactionState.ONGOING}:
        return f"{owner} is in state {details.state}, so its coordinator has ended every transaction that it knows"
    if found.where not in details.partitions:
        return f"{owner} is in state {details.state}, and its transaction does not include {found.where}"
    # From Prepare on the coordinator shows the epoch of the markers (KIP-890), and these end all older ones.
    if details.state == TransactionState.ONGOING and details.producer_epoch != found.producer_epoch:
        return (
            f"it has epoch {found.producer_epoch}, and the ongoing transaction of {owner} has epoch "
            f"{details.producer_epoch}: it belongs to an earlier transaction"
        )
    return None


def owners_of(
    queries: TransactionQueries, candidates: Sequence[OpenTransaction]
) -> dict[OpenTransaction, TransactionDetails | None]:
    """The transactional id with each candidate's producer id; None if no coordinator knows the producer id."""
    if not candidates:
        return {}
    owners = queries.owners(sorted({found.producer_id for found in candidates}))
    details = {owner: queries.details(owner) for owner in sorted(set(owners.values()))}
    return {found: details.get(owners.get(found.producer_id, "")) for found in candidates}


#: How often a marker with a lost answer is sent, each time after checking again whether it is needed.
MARKERS_SENT_MAX: Final = 3
#: The timeout that force-terminate stores for an id without one: Java's default of transaction.timeout.ms.
DEFAULT_TIMEOUT_MS: Final = 60_000


@dataclass(frozen=True)
class AbortTarget:
    """The open transaction to abort, identified by its first offset or its pair."""

    partition: TopicPartition
    start_offset: int | None
    producer: ProducerIdAndEpoch | None
    #: For the marker; None uses the leader's last known one.
    coordinator_epoch: int | None

    def matches(self, found: OpenTransaction) -> bool:
        if self.producer is None:
            return found.start_offset == self.start_offset
        return (found.producer_id, found.producer_epoch) == (self.producer.producer_id, self.producer.epoch)

    def __str__(self) -> str:
        return f"start offset {self.start_offset}" if self.producer is None else f"producer {self.producer}"


def abort(queries: TransactionQueries, target: AbortTarget) -> AbortedOpenTransaction:
    """Write an ABORT marker into one partition, for a hanging transaction; see `TransactionTool.abort`."""
    sent: tuple[OpenTransaction, str] | None = None
    last_error = ""
    for _ in range(MARKERS_SENT_MAX):
        hangs = _check_twice(queries, target)
        if hangs is None:
            if sent is None:
                raise _not_open(queries, target)
            return AbortedOpenTransaction(**vars(sent[0]), marker_written=False, reason=sent[1])
        found, reason = sent = hangs
        wanted_epoch = found.coordinator_epoch if target.coordinator_epoch is None else target.coordinator_epoch
        code = queries.write_abort_marker(
            target.partition,
            ProducerIdAndEpoch(found.producer_id, found.producer_epoch),
            # Below the leader's known one it answers TRANSACTION_COORDINATOR_FENCED; 0 if it has seen none yet.
            coordinator_epoch=max(wanted_epoch, 0),
        )
        if code == Code.NONE:
            return AbortedOpenTransaction(**vars(found), marker_written=True, reason=reason)
        if code is not None and code not in LEADER_MOVED:
            raise kafka_error("WriteTxnMarkers", code, f"{target.partition}, {target}, producer {found.producer_id}")
        last_error = "the answer was lost" if code is None else f"the broker answered {describe_error(code)}"
        # The same pair may begin its next transaction: from here on only this one is the target.
        target = replace(target, start_offset=found.start_offset, producer=None)
    raise OutcomeUnknownError(
        operation=f"WriteTxnMarkers for {target.partition}, {target}, sent {MARKERS_SENT_MAX} times,",
        deadline_ms=queries.deadline_ms,
        last_error=last_error,
    )


def force_terminate(queries: TransactionQueries, transactional_id: str) -> TerminatedTransaction:
    """Have the coordinator abort the id's transaction, and fence its producer (KIP-939, forceTerminateTransaction).

    It is a plain InitProducerId, which also ends transactions with two-phase commit; see
    `TransactionTool.force_terminate`.
    """
    listed = {row.transactional_id for row in queries.listings(ListFilter())}
    before = queries.details(transactional_id) if transactional_id in listed else None
    if before is None:
        rule = "a coordinator must list it to us (permission DESCRIBE); InitProducerId would create an unknown id"
        remedy = "choose one that is listed: spark-2pc transactions … list, with the connection in place of …"
        raise refused("transactional_id", transactional_id, rule, remedy)
    timeout_ms = DEFAULT_TIMEOUT_MS if before.two_phase_commit else before.timeout_ms
    try:
        reply = queries.init_producer_id(transactional_id, timeout_ms=timeout_ms)
    except KafkaTimeoutError as error:
        operation = (
            f"force-terminate of {transactional_id!r} (its state was {before.state}; if a partition's leader refuses "
            "the end marker, the state stays until the coordinator's broker restarts)"
        )
        raise OutcomeUnknownError.of(error, operation) from error
    producer = initialized_pair(reply)
    if reply.error_code != Code.NONE or producer is None:
        raise kafka_error("InitProducerId", reply.error_code, f"transactional id {transactional_id!r}")
    return TerminatedTransaction(
        transactional_id=transactional_id,
        state_before=before.state,
        partitions_before=before.partitions,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        timeout_ms=timeout_ms,
        warnings=tuple(_warnings(before, timeout_ms)),
    )


def _check_twice(queries: TransactionQueries, target: AbortTarget) -> tuple[OpenTransaction, str] | None:
    """The hanging transaction and the reason, identical in two checks; None if it is not open (any more)."""
    first = _find(queries, target)
    if first is None:
        return None
    second = _find(queries, target)
    if second is not None and first[0].identity != second[0].identity:
        raise AbortRefusedError(
            partition=str(target.partition),
            start_offset=first[0].start_offset,
            reason="its producer changed between two checks, so another client is using it",
            remedies=(remedy("spark-2pc transactions find-hanging", "changes nothing: checks again"),),
        )
    return second


def _find(queries: TransactionQueries, target: AbortTarget) -> tuple[OpenTransaction, str] | None:
    opened = open_transactions(queries.producers([target.partition]))
    found = next((item for item in opened if target.matches(item)), None)
    if found is None:
        return None
    owner = owners_of(queries, [found])[found]
    reason = why_hanging(found, owner)
    if owner is None or reason is not None:
        return found, reason or ""
    who = f"its coordinator knows it as the current transaction of transactional id {owner.transactional_id!r}"
    raise AbortRefusedError(
        partition=str(found.where),
        start_offset=found.start_offset,
        reason=f"{who}; with a marker, readers would skip records that the producer can still commit",
        remedies=end_known(owner, is_sink=None),
        owner=owner,
    )


def _not_open(queries: TransactionQueries, target: AbortTarget) -> ConfigurationError:
    opened = open_transactions(queries.producers([target.partition]))
    others = ", ".join(f"{item.start_offset} (producer {item.producer_id}:{item.producer_epoch})" for item in opened)
    by_offset = target.producer is None
    return refused(
        "start_offset" if by_offset else "producer",
        target.start_offset if by_offset else str(target.producer),
        f"must identify a transaction that is open in {target.partition}",
        f"open transactions there begin at: {others}" if others else "no transaction is open there",
    )


def _warnings(before: TransactionDetails, timeout_ms: int) -> list[str]:
    warnings = []
    if before.state == TransactionState.ONGOING:
        warnings.append(
            f"the open transaction of {before.transactional_id!r} was aborted in every partition; if it belonged to a "
            "sink whose database has decided it, that batch is missing in Kafka: recover, or the next start of the job "
            "records it as `owed`, and the job sends it again"
        )
    if before.two_phase_commit:
        warnings.append(
            f"transactions of {before.transactional_id!r} had no timeout (two-phase commit); the coordinator now has "
            f"{timeout_ms} ms, until the owner calls InitProducerId with enable2Pc again"
        )
    warnings.append(f"the producer that used {before.transactional_id!r} is fenced: its next request fails; restart it")
    return warnings


def force_terminate_recorded(
    queries: TransactionQueries, transactional_id: str, store: StateStore
) -> TerminatedTransaction:
    """`force_terminate`, recorded in a sink's database before and after; a failure is recorded too."""
    store.note_action(transactional_id, None, FORCE_TERMINATE, {"outcome": "asked"})
    try:
        done = force_terminate(queries, transactional_id)
    except DualWriteError as error:
        outcome = "unknown" if isinstance(error, OutcomeUnknownError) else "refused"
        problem = _note(store, transactional_id, {"outcome": outcome, "did": str(error)})
        if problem:
            sink_log(__name__, transactional_id).warning("%s", problem)
        raise
    did = {
        "outcome": "done",
        "did": f"fenced its producer; its transaction was {done.state_before}",
        "producer": f"{done.producer_id}:{done.producer_epoch}",
    }
    problem = _note(store, transactional_id, did)
    return replace(done, warnings=(*done.warnings, problem)) if problem else done


def _note(store: StateStore, transactional_id: str, detail: Mapping[str, str]) -> str:
    """Write the second row; returns the error, or ''. Kafka has already acted, so an error must be reported."""
    try:
        store.note_action(transactional_id, None, FORCE_TERMINATE, detail)
    except StateStoreError as error:
        return f"the outcome ({detail['outcome']}) could not be recorded in the database: {error}"
    return ""


_TOOL: Final = "spark-2pc transactions"
AS_DECIDED: Final = "ends it as the sink's database has decided"
#: The check whether force-terminate has removed a batch from Kafka that a database has.
AFTER_TERMINATION: Final = (
    "if it is a sink: records the batch as owed if its database has decided it, so that the job sends it again"
)
_BARE: Final = re.compile(r"^spark-2pc (?:recover|status|transactions [a-z-]+)")


@dataclass(frozen=True)
class KnownSinks:
    ids: frozenset[str]
    producers: Mapping[int, str]

    @classmethod
    def of(cls, rows: Iterable[StateRow]) -> KnownSinks:
        listed = list(rows)
        pairs = [
            (PreparedTxnState(text).producer, row.transactional_id)
            for row in listed
            for text in (row.prepared_transaction_state, row.settled)
        ]
        producers = {pair.producer_id: transactional_id for pair, transactional_id in pairs if pair is not None}
        return cls(frozenset(row.transactional_id for row in listed), producers)


def end_known(owner: TransactionDetails, *, is_sink: bool | None) -> tuple[str, ...]:
    """Remedies for a transaction that its coordinator knows; ``is_sink`` is None if no database was asked."""
    if owner.state != TransactionState.ONGOING:
        wait = f"wait: its markers are being written ({owner.state}); if that state stays, a leader has refused one"
        return (f"{wait} (see the log of broker {owner.coordinator}), and a restart of that broker sends them again",)
    recover = about_id(RECOVER, owner.transactional_id, f"{'' if is_sink else 'if it is a sink: '}{AS_DECIDED}")
    lost = f"if {'the database' if is_sink else 'its owner'} is permanently lost"
    change = f"{lost}: aborts it in every partition, and fences its producer"
    terminate = about_id(f"{_TOOL} force-terminate", owner.transactional_id, change)
    if owner.two_phase_commit:
        wait = "let its owner end it, or restart the owner: with two-phase commit it does not time out"
        return (wait, terminate) if is_sink is False else (wait, recover, terminate)
    wait = f"wait: its producer ends it, or the coordinator aborts it {owner.timeout_ms} ms after it began"
    return (wait, recover, terminate) if is_sink else (wait, terminate)


def end_hanging(found: OpenTransaction, *, sink: str | None) -> tuple[str, ...]:
    """Remedies for a hanging transaction; ``sink`` is the owning sink's transactional id, None if unknown."""
    where = f"--topic {shlex.quote(found.topic)} --partition {found.partition} --start-offset {found.start_offset}"
    change = f"readers never see its records in {found.where}; refused if a coordinator knows it"
    abort = remedy(f"{_TOOL} abort {where}", change)
    if sink is None:
        return (abort,)
    look = about_id(STATUS, sink, "changes nothing: shows whether the database of its sink has decided it")
    return look, about_id(RECOVER, sink, f"before any abort: {AS_DECIDED}, or reports why not"), abort


def about_id(command: str, transactional_id: str, change: str) -> str:
    return remedy(f"{command} --transactional-id {shlex.quote(transactional_id)}", change)


def with_cluster(remedies: Iterable[str], connection: NamedConnection) -> tuple[str, ...]:
    """The remedies with complete commands; a database that is not named must be added by the operator, as a URL."""

    def named(found: re.Match[str]) -> str:
        words = [found[0], connection.words] if connection.words else [found[0]]
        lacks_database = found[0] in (RECOVER, STATUS) and not connection.database
        return " ".join([*words, "--database URL"] if lacks_database else words)

    return tuple(_BARE.sub(named, each) for each in remedies)
