"""A batch between its steps: prepared, with nothing decided; and decided, with no way back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from jdbc_state import Decision
from spark_2pc_sink.errors import TransactionExpiredError
from spark_2pc_sink.ids import PreparedTxnState, ProducerIdAndEpoch

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from jdbc_state import StateRow
    from spark_2pc_sink.producer.producer_init import InitializedProducer
    from spark_2pc_sink.recipe.kept_records import WrittenRecords
    from spark_2pc_sink.sink.contract.batch_work import ProducedBatch


@dataclass(frozen=True)
class PreparedBatch:
    """A batch whose records are all acknowledged and invisible; nothing is decided yet."""

    batch_id: int
    producer: ProducerIdAndEpoch
    produced: ProducedBatch
    begun_s: float

    def check_time_left(self, now_s: float, initialized: InitializedProducer, *, margin_ms: int) -> None:
        """See that Kafka still keeps the transaction for long enough.

        Args:
            now_s: by the clock of ``begun_s``.
            initialized: says how long it keeps transactions.
            margin_ms: what must be left.

        Raises:
            TransactionExpiredError: it would abort the transaction before it could be committed.
        """
        elapsed_ms = int((now_s - self.begun_s) * 1000)
        if not initialized.two_phase_commit and elapsed_ms + margin_ms > initialized.timeout_ms:
            raise TransactionExpiredError(
                batch_id=self.batch_id,
                elapsed_ms=elapsed_ms,
                timeout_ms=initialized.timeout_ms,
                margin_ms=margin_ms,
                own_timeout=initialized.own_timeout,
            )

    def decision(self, row: StateRow, *, row_count: int, figures: Mapping[str, Any] | None = None) -> Decision:
        """What the database transaction writes into the state row.

        Args:
            row: beside which the batch was placed.
            row_count: rows that the database has of it.
            figures: for the history, where none come later.
        """
        produced = self.produced
        return Decision(
            prepared=str(PreparedTxnState.of(self.producer)),
            expected=row.prepared_transaction_state,
            batch_id=self.batch_id,
            row_count=row_count,
            record_count=produced.record_count,
            digest=produced.digest,
            kafka_offsets={str(partition): offsets for partition, offsets in produced.offsets.items()},
            topic_ids=produced.topic_ids,
            figures=figures,
        )


@dataclass(frozen=True)
class DecidedBatch:
    """A batch that the database has. It can only be completed: there is no way back."""

    producer: ProducerIdAndEpoch
    written: WrittenRecords
