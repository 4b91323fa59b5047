"""The row encoder: COPY bytes of a task's rows, on their way to the driver.

Rows are encoded to COPY BINARY where they are. Those of a task come to the driver when the task has ended, as one
transfer (`copy_channel`). A task with more than a few rows stages them while it runs, from where the driver takes them
(`staging`).
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_2pc_sink.sink.table.copy_encoder import CopyEncoder
from spark_2pc_sink.sink.transfer.copy_channel import Transfer
from spark_2pc_sink.sink.transfer.staging import PartWriter

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_2pc_sink.sink.contract.batch_work import TransactionTicket
    from spark_2pc_sink.sink.table.column_plan import ColumnPlan
    from spark_2pc_sink.sink.transfer.copy_channel import TransferSender
    from spark_2pc_sink.sink.transfer.staging import Staging


@dataclass(frozen=True)
class RowEncoderPlan:
    """How tasks encode rows for the table, and where the COPY bytes go. Can be pickled.

    Attributes:
        columns: how each column is checked and encoded.
        staging: where a task puts its rows when they are more than `inline_bytes_max`.
        sender: brings transfers to the driver.
        inline_bytes_max: COPY bytes of one transfer; a task that makes more stages them.
        row_key: the column that tells rows apart in error texts; None for the upsert keys.
    """

    columns: ColumnPlan
    staging: Staging
    sender: TransferSender
    inline_bytes_max: int
    row_key: str | None


class RowEncoder:
    """Encodes the rows of one task; a transfer brings the COPY bytes to the driver, or staging those of many rows.

    Args:
        plan: from the driver.
        ticket: of the attempt.
        encode_task: the Spark partition id.
        task_attempt: tells the attempts of one encode task apart.
    """

    def __init__(self, plan: RowEncoderPlan, ticket: TransactionTicket, encode_task: int, task_attempt: int) -> None:
        self._plan = plan
        self._ticket = ticket
        self._encode_task = encode_task
        self._task_attempt = task_attempt
        self._encoder = CopyEncoder(plan.columns, row_key=plan.row_key)
        self._stream: list[bytes] = []
        self._inline_bytes = 0
        self._stack = ExitStack()
        self._stage: PartWriter | None = None

    @property
    def rows(self) -> int:
        """How many were encoded; none are held back after `finish`."""
        return self._encoder.rows

    @property
    def staged_parts(self) -> int:
        """Parts that were staged; 0 where a transfer has all rows."""
        return 0 if self._stage is None else self._stage.parts

    def write(self, batch: pa.RecordBatch) -> None:
        """Encode a batch.

        Raises:
            UnstorableValueError: a value that the table cannot hold.
            BatchRetryError, DatabaseUnreachableError: rows were to be staged, and could not be.
        """
        encoded = self._encoder.encode(batch)
        if self._stage is not None:
            self._stage.write(encoded)
        elif encoded:
            self._inline_bytes += len(encoded)
            self._stream.append(encoded)
            if self._inline_bytes > self._plan.inline_bytes_max:
                self._stage = self._to_staging()

    def finish(self) -> None:
        """Encode what was held back: the rows are complete then, staged or in a transfer on its way."""
        tail = self._encoder.finish()
        if self._stage is not None:
            self._stage.finish(tail)
        elif self.rows:
            transfer = Transfer(self._ticket.attempt, self._encode_task, self._task_attempt, (*self._stream, tail))
            self._plan.sender.add([transfer])

    def close(self) -> None:
        """Drop what was not finished, and close the connection."""
        self._stack.close()

    def _to_staging(self) -> PartWriter:
        """Stage the stream so far, and what follows: nobody waits for it until the task's end."""
        staging = self._plan.staging
        store = self._stack.enter_context(staging.store(self._encode_task, self._task_attempt))
        stage = PartWriter(store, part_bytes=staging.part_bytes)
        for encoded in self._stream:
            stage.write(encoded)
        self._stream.clear()
        return stage
