"""The row encoder: COPY bytes of a task's rows, on their way to the driver.

Rows are encoded to COPY BINARY where they are. Those of a task come to the driver when the task has ended, as one
transfer (`copy_channel`). A task with more than a few rows stages them while it runs, from where the driver takes them
(`Staging`).
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from spark_2pc_sink.errors import LocalProtocolError
from spark_2pc_sink.sink.contract.row_transfer import Transfer
from spark_2pc_sink.sink.table.copy_encoder import CopyEncoder
from spark_2pc_sink.sink.table.copy_stream import HEADER, TRAILER

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_2pc_sink.sink.contract.batch_work import TransactionTicket
    from spark_2pc_sink.sink.contract.row_transfer import PartStore, RowEncoderPlan


class RowEncoder:
    """Encodes the rows of a lane in one task; a transfer brings the COPY bytes to the driver, or staging if many.

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
            if self._plan.sender is None or self._inline_bytes > self._plan.inline_bytes_max:
                self._stage = self._to_staging()

    def finish(self) -> None:
        """Encode what was held back: the rows are complete then, staged or in a transfer on its way."""
        tail = self._encoder.finish()
        if self._stage is None and self.rows:
            if self._plan.sender is not None:
                stream = (*self._stream, tail)
                task = (self._encode_task, self._task_attempt)
                self._plan.sender.add([Transfer(self._ticket.attempt, *task, stream, lane=self._plan.lane)])
                return
            self._stage = self._to_staging()
        if self._stage is not None:
            self._stage.finish(tail)

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


class PartWriter:
    """Cuts the output of a `CopyEncoder` into parts; at most one part and one more chunk are in memory.

    Args:
        store: where parts go.
        part_bytes: see `Staging`.

    Attributes:
        parts: how many were stored.
    """

    def __init__(self, store: PartStore, *, part_bytes: int) -> None:
        self._store = store
        self._part_bytes = part_bytes
        self._chunks: list[bytes] = []
        self._held_bytes = 0
        self._begun = False
        self.parts: int = 0

    def write(self, data: bytes) -> None:
        """Take the next output of the encoder.

        Raises:
            LocalProtocolError: it is the first, and has no header.
        """
        if not self._begun and data:
            if not data.startswith(HEADER):
                raise LocalProtocolError(operation="write", state="begun", rule="a stream begins with its header")
            data = data[len(HEADER) :]
            self._begun = True
        self._chunks.append(data)
        self._held_bytes += len(data)
        if self._held_bytes >= self._part_bytes:
            self._flush()

    def finish(self, tail: bytes) -> None:
        """Take what the encoder's ``finish`` returned; all parts are stored then.

        Raises:
            LocalProtocolError: ``tail`` is not the end of the stream.
        """
        if not tail.endswith(TRAILER):
            raise LocalProtocolError(operation="finish", state="begun", rule="a stream ends with its trailer")
        self.write(tail[: -len(TRAILER)])
        if self._held_bytes:
            self._flush()

    def _flush(self) -> None:
        part = (HEADER, *self._chunks, TRAILER)
        self._chunks, self._held_bytes = [], 0
        self._store.put(self.parts, part)
        self.parts += 1
