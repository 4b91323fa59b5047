"""Resending: the records of a service's transaction that Kafka lacks, from the copies in the database.

Spark replays micro-batches, but a service's transactions are not replayed. So a decided transaction also stores its
records, if Kafka may abort it after the decision: without two-phase commit a broker ends every transaction that lasts
too long, even if its driver has died between the two commits.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from jdbc_state import DONE, OWED, Decision
from spark_2pc_sink.choices import Facts, HaltCause, HaltError
from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import BatchRetryError, LocalProtocolError
from spark_2pc_sink.ids import EPOCH_BUMP_VERSION, PreparedTxnState
from spark_2pc_sink.kafka.produce_session import SendBatches, split_batches
from spark_2pc_sink.recovery.report import Action, shown

if TYPE_CHECKING:
    from jdbc_state import KeptRecords, StateRow
    from jdbc_state.state_store import KeepingStore
    from spark_2pc_sink.recovery.kafka_side import KafkaSide
    from spark_2pc_sink.recovery.recovery import Recovered
    from spark_2pc_sink.wire.record_batch import PlacedBatch


def kept_for(store: KeepingStore, row: StateRow) -> KeptRecords | None:
    """The records of the row's batch in the database; None if it is not owed, or they are not there."""
    kept = store.read_kept(row.transactional_id) if row.status == OWED else None
    return kept if kept is not None and kept.batch_id == row.batch_id else None


def resend(recovered: Recovered, *, kafka: KafkaSide, store: KeepingStore, send: SendBatches) -> Recovered:
    """Resend the owed batch of a row that was just recovered, decide it again at the new epoch, and complete it.

    After any error the next recovery continues from there: the row is still owed, or decided at the new epoch.

    Returns:
        The same with the resulting row, and the producer id and epoch to use next.

    Raises:
        HaltError: the kept records are not those of the batch, or there are none.
        BatchRetryError: Kafka could not commit it.
        Everything else: raised by `BatchListSender.send`.
        SupersededError, CommitUnknownError, StateStoreError, OutcomeUnknownError: as in any batch.
    """
    row, producer = recovered.row, recovered.initialized.producer
    batches = _kept_batches(store, row)
    if kafka.transaction_version < EPOCH_BUMP_VERSION:
        kafka.add_partitions(producer, [each.partition for each in batches])
    sent = send(producer, kafka.transaction_version, batches)
    with store.deciding(row.transactional_id, row.generation) as transaction:
        transaction.decide(
            Decision(
                prepared=str(PreparedTxnState.of(producer)),
                expected=row.prepared_transaction_state,
                batch_id=row.batch_id or 0,
                row_count=row.row_count,
                record_count=row.record_count,
                digest=row.digest,
                kafka_offsets={str(partition): at for partition, at in sent.offsets.items()},
                topic_ids=dict(sent.topic_ids),
            )
        )
    answer = kafka.end(producer, commit=True)
    if answer.code != Code.NONE:
        raise BatchRetryError(reason=f"EndTxn(commit) of the resent transaction {producer} answered {answer}")
    row = store.mark_done(row.transactional_id, row.generation, str(answer.producer or producer))
    # Below transaction.version 2 EndTxn returns no new epoch: the next transaction begins with InitProducerId.
    following = answer.producer
    initialized = kafka.usable_producer() if following is None else replace(recovered.initialized, producer=following)
    did = Action("resend", f"resent {row.record_count} records of batch {row.batch_id} from the kept copy")
    report = replace(
        recovered.report,
        settled=row.status == DONE,
        row=row,
        actions=(*recovered.report.actions, did),
        reason="Kafka has the batch that it was owed",
        remedies=(),
    )
    return replace(recovered, row=row, initialized=initialized, report=report)


def _kept_batches(store: KeepingStore, row: StateRow) -> list[PlacedBatch]:
    kept = kept_for(store, row)
    if kept is None:
        raise _lost(
            row,
            "the database has not kept its records: two-phase commit was granted and an operator ended its "
            "transaction, or the table of kept records was changed",
        )
    try:
        batches = list(split_batches(kept.partitions, kept.batches))
    except LocalProtocolError as error:
        raise _lost(row, f"the kept records cannot be read: {error}") from error
    count = sum(each.record_count for each in batches)
    if count != row.record_count:
        raise _lost(row, f"the batch has {row.record_count} records, and {count} are kept")
    return batches


def _lost(row: StateRow, reason: str) -> HaltError:
    return HaltError(
        transactional_id=row.transactional_id,
        cause=HaltCause.RESEND_DIFFERS,
        database_side=shown(row),
        kafka_side="it has aborted the batch",
        reason=f"Kafka is owed batch {row.batch_id} of a service, and {reason}",
        facts=Facts(known=frozenset({"service"}), batch=row.batch_id),
    )
