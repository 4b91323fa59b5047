"""Ending transactions by hand: an abort marker for one that hangs, force-terminate for one that a coordinator has.

No broker checks an abort marker against the coordinator (KIP-664's own check of the start offset was never released).
So a marker written into a transaction that its coordinator knows leaves two truths: readers skip the records, and the
producer still "commits" them with success (datastax/starlight-for-kafka#79). All that stands before it is this module:
it looks twice, at the partition and at every coordinator, the second time right before the marker.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import AbortRefusedError, ConfigurationError, KafkaTimeoutError, OutcomeUnknownError
from spark_2pc_sink.ids import ProducerIdAndEpoch, TopicPartition, TransactionState
from spark_2pc_sink.producer.error_policy import LEADER_MOVED, kafka_error
from spark_2pc_sink.recipe.remedies import remedy
from spark_2pc_sink.transactions.hanging import judge, open_transactions
from spark_2pc_sink.transactions.queries import TransactionQueries
from spark_2pc_sink.transactions.remedies import end_known
from spark_2pc_sink.transactions.values import (
    AbortedOpenTransaction,
    ListFilter,
    OpenTransaction,
    TerminatedTransaction,
    TransactionDetails,
)
from spark_2pc_sink.wire.error_codes import describe_error

#: How often a marker is sent whose answer is lost, each time after looking again whether it is needed.
MARKERS_SENT_MAX: Final = 3
#: What force-terminate stores as the timeout of an id that had none: Java's default of transaction.timeout.ms.
DEFAULT_TIMEOUT_MS: Final = 60_000
#: The coordinator epoch of a marker where the leader has seen none yet. Not above that of any coordinator.
_FIRST_COORDINATOR_EPOCH: Final = 0


@dataclass(frozen=True)
class AbortTarget:
    """Which open transaction is to be aborted: by its first offset, or by its pair.

    Args:
        partition: where it is open.
        start_offset: its first offset.
        producer: its pair, instead of ``start_offset``.
        coordinator_epoch: for the marker; None for the one that the leader remembers.
    """

    partition: TopicPartition
    start_offset: int | None
    producer: ProducerIdAndEpoch | None
    coordinator_epoch: int | None

    def matches(self, found: OpenTransaction) -> bool:
        """Whether ``found`` is meant."""
        if self.producer is None:
            return found.start_offset == self.start_offset
        return (found.producer_id, found.producer_epoch) == (self.producer.producer_id, self.producer.epoch)

    def __str__(self) -> str:
        return f"start offset {self.start_offset}" if self.producer is None else f"producer {self.producer}"


def abort(queries: TransactionQueries, target: AbortTarget) -> AbortedOpenTransaction:
    """Write an ABORT marker into one partition, for a transaction that no coordinator will end.

    Raises:
        ConfigurationError: no such transaction is open there. Nothing was written.
        AbortRefusedError: its coordinator knows it, or it changed between two looks. Nothing was written.
        KafkaError: the leader refused the marker: code 47 where a newer epoch of the producer has written since, 52
            where the coordinator epoch is too old.
        OutcomeUnknownError: the answers to several markers were lost.
        AuthorizationError, KafkaTimeoutError: some broker could not be asked. Nothing was written.
    """
    sent: tuple[OpenTransaction, str] | None = None
    last_error = ""
    for _ in range(MARKERS_SENT_MAX):
        hangs = _look_twice(queries, target)
        if hangs is None:
            if sent is None:
                raise _not_open(queries, target)
            return AbortedOpenTransaction(**vars(sent[0]), marker_written=False, reason=sent[1])
        found, reason = sent = hangs
        code = queries.write_abort_marker(
            target.partition,
            ProducerIdAndEpoch(found.producer_id, found.producer_epoch),
            coordinator_epoch=_coordinator_epoch(target, found),
        )
        if code == Code.NONE:
            return AbortedOpenTransaction(**vars(found), marker_written=True, reason=reason)
        if code is not None and code not in LEADER_MOVED:
            raise kafka_error("WriteTxnMarkers", code, f"{target.partition}, {target}, producer {found.producer_id}")
        last_error = "the answer was lost" if code is None else f"the broker answered {describe_error(code)}"
        # The same pair may begin its next transaction: from here on only this one is meant.
        target = replace(target, start_offset=found.start_offset, producer=None)
    raise OutcomeUnknownError(
        operation=f"WriteTxnMarkers for {target.partition}, {target}, sent {MARKERS_SENT_MAX} times,",
        deadline_ms=queries.deadline_ms,
        last_error=last_error,
    )


def force_terminate(queries: TransactionQueries, transactional_id: str) -> TerminatedTransaction:
    """Have the coordinator abort what the id has open, and fence its producer (KIP-939, forceTerminateTransaction).

    It is a plain InitProducerId, which also ends transactions with two-phase commit.

    Raises:
        ConfigurationError: no coordinator lists the id; InitProducerId would create it. Nothing was changed.
        KafkaError: the coordinator refused.
        OutcomeUnknownError: the transaction was still being aborted when time was up.
        AuthorizationError, KafkaTimeoutError: some broker could not be asked. Nothing was changed.
    """
    listed = {row.transactional_id for row in queries.listings(ListFilter())}
    before = queries.details(transactional_id) if transactional_id in listed else None
    if before is None:
        raise ConfigurationError(
            option="transactional_id",
            value=transactional_id,
            rule="a coordinator lists it, and lets us see it (DESCRIBE); for an unknown one InitProducerId would "
            "create it",
            remedy="choose one that is listed: spark-2pc transactions list",
        )
    timeout_ms = DEFAULT_TIMEOUT_MS if before.two_phase_commit else before.timeout_ms
    try:
        reply = queries.init_producer_id(transactional_id, timeout_ms=timeout_ms)
    except KafkaTimeoutError as error:
        raise OutcomeUnknownError(
            operation=f"force-terminate of {transactional_id!r} (it was {before.state}; where the leader of a "
            "partition refuses its end marker, that state stays until the coordinator's broker restarts)",
            deadline_ms=error.deadline_ms,
            last_error=error.last_error,
        ) from error
    if reply.error_code != Code.NONE or reply.producer is None:
        raise kafka_error("InitProducerId", reply.error_code, f"transactional id {transactional_id!r}")
    return TerminatedTransaction(
        transactional_id=transactional_id,
        state_before=before.state,
        partitions_before=before.partitions,
        producer_id=reply.producer.producer_id,
        producer_epoch=reply.producer.epoch,
        timeout_ms=timeout_ms,
        warnings=tuple(_warnings(before, timeout_ms)),
    )


def _look_twice(queries: TransactionQueries, target: AbortTarget) -> tuple[OpenTransaction, str] | None:
    """The transaction and why nobody will end it, the same in two looks; None where it is not open (any more)."""
    first = _look(queries, target)
    second = None if first is None else _look(queries, target)
    if first is not None and second is not None and first[0].identity != second[0].identity:
        raise AbortRefusedError(
            partition=str(target.partition),
            start_offset=first[0].start_offset,
            reason="its producer has changed between two looks, so somebody is at work on it",
            remedies=(remedy("spark-2pc transactions find-hanging", "changes nothing: look again"),),
        )
    return second


def _look(queries: TransactionQueries, target: AbortTarget) -> tuple[OpenTransaction, str] | None:
    opened = open_transactions(queries.producers([target.partition]))
    found = next((item for item in opened if target.matches(item)), None)
    if found is None:
        return None
    judgement = judge(queries, [found])[found]
    if judgement.owner is None or judgement.reason is not None:
        return found, judgement.reason or ""
    raise _known(found, judgement.owner)


def _known(found: OpenTransaction, owner: TransactionDetails) -> AbortRefusedError:
    who = f"its coordinator knows it, as the current transaction of transactional id {owner.transactional_id!r}"
    return AbortRefusedError(
        partition=str(found.where),
        start_offset=found.start_offset,
        reason=f"{who}; behind its back, readers would skip records that the producer can still commit",
        remedies=end_known(owner, is_sink=None),
        owner=owner,
    )


def _coordinator_epoch(target: AbortTarget, found: OpenTransaction) -> int:
    """Kafka's rule: not below the one that the leader remembers, else it answers TRANSACTION_COORDINATOR_FENCED."""
    wanted = found.coordinator_epoch if target.coordinator_epoch is None else target.coordinator_epoch
    return max(wanted, _FIRST_COORDINATOR_EPOCH)


def _not_open(queries: TransactionQueries, target: AbortTarget) -> ConfigurationError:
    opened = open_transactions(queries.producers([target.partition]))
    others = ", ".join(f"{item.start_offset} (producer {item.producer_id}:{item.producer_epoch})" for item in opened)
    return ConfigurationError(
        option="start_offset" if target.producer is None else "producer",
        value=target.start_offset if target.producer is None else str(target.producer),
        rule=f"a transaction is open with it in {target.partition}",
        remedy=f"open transactions there begin at: {others}" if others else "no transaction is open there",
    )


def _warnings(before: TransactionDetails, timeout_ms: int) -> list[str]:
    warnings = []
    if before.state == TransactionState.ONGOING:
        warnings.append(
            f"the open transaction of {before.transactional_id!r} was aborted in every partition; if it belongs to a "
            "sink whose database has decided it, Kafka lacks that batch: recover, or the next start of the job, notes "
            "it as `owed`, and the job sends it again"
        )
    if before.two_phase_commit:
        warnings.append(
            f"transactions of {before.transactional_id!r} had no timeout (two-phase commit); the coordinator stores "
            f"{timeout_ms} ms now, until the owner calls InitProducerId with enable2Pc again"
        )
    warnings.append(
        f"the producer that used {before.transactional_id!r} is fenced: its next request fails, and it must start again"
    )
    return warnings
