"""The commitment of one transaction: the steps of the recipe, in order, for a caller that does the database's part.

`DualWrite` and `AsyncDualWrite` use the same steps. Waiting for Kafka blocks the calling thread; the database's steps
run where the caller's session is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from jdbc_state.sink_log import sink_log
from spark_2pc_sink.errors import AbortableError, DualWriteError, FencedError, InDoubtError

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from spark_2pc_sink.service.id_pool import IdPool
    from spark_2pc_sink.service.id_writer import IdWriter, SentRecords
    from spark_2pc_sink.service.outgoing import EncodedRecords, OutgoingRecord

_log = sink_log(__name__)


class Commitment:
    """One transaction in progress; ``encode`` is for the current topics. Call `end` in every case."""

    def __init__(self, pool: IdPool, encode: Callable[[Sequence[OutgoingRecord]], EncodedRecords]) -> None:
        self._pool = pool
        self._encode = encode
        self._writer: IdWriter | None = None
        self._sent: SentRecords | None = None

    def send(self, records: Sequence[OutgoingRecord]) -> None:
        """Take an id, send everything, and wait for the acknowledgements. Blocks; after an error nothing is decided.

        An id at an epoch that Kafka no longer accepts, as it has expired or a recovery was run, is recovered and
        retried once. So is one whose previous transaction Kafka has not committed yet.
        """
        encoded = self._encode(records)
        writer = self._writer = self._pool.acquire()
        writer.end_completion()
        if writer.unsettled:
            writer.recover()
        try:
            self._sent = writer.send(encoded)
        except (FencedError, AbortableError) as error:
            _log.warning("%s: %s; recovering the id", writer.transactional_id, error)
            writer.recover()
            self._sent = writer.send(encoded)

    def decide(self, connection: Connection) -> None:
        """Write the state row, the last statement before COMMIT. After an error the transaction must be rolled back."""
        writer, sent = self._parts()
        writer.decide(connection, sent)

    def committed(self) -> None:
        """Note that COMMIT was answered: the transaction can no longer be aborted."""
        writer, sent = self._parts()
        writer.decided(sent)

    def commit_failed(self) -> bool:
        """Whether a COMMIT that raised was carried out; it is then completed in Kafka. Blocks.

        Raises InDoubtError if that is still unknown after the time limit.
        """
        writer, sent = self._parts()
        return writer.settle(sent.producer)

    def complete(self) -> None:
        """Commit in Kafka, and give the id back. Blocks. After InDoubtError the id's next recovery completes it."""
        writer, sent = self._parts()
        try:
            with self._decided():
                writer.complete(sent)
        finally:
            self.end()

    def begin_completion(self) -> bool:
        """Send the commit to Kafka without waiting, and give the id back: its next holder reads the answer.

        Returns False if it could not be sent at once: call `complete` or `complete_in_background`.
        """
        writer, sent = self._parts()
        begun = True
        try:
            with self._decided():
                begun = writer.begin_completion(sent)
        finally:
            if begun:
                self.end()
        return begun

    def complete_in_background(self) -> None:
        """`complete` in the background: errors are logged, and the keeper of the ids settles the transaction."""
        try:
            self.complete()
        except DualWriteError:
            _log.exception("could not complete a decided transaction in Kafka yet")

    @contextmanager
    def _decided(self) -> Iterator[None]:
        """Wrap errors, such as those of signal handlers: a decided transaction must not appear to have failed."""
        try:
            yield
        except DualWriteError:
            raise
        except Exception as error:
            writer, sent = self._parts()
            raise InDoubtError(
                transactional_id=writer.transactional_id, prepared=str(sent.producer), detail=repr(error)
            ) from error

    def end(self) -> None:
        """Give the id back. Records that were sent and not decided are aborted when the id is settled."""
        writer, self._writer = self._writer, None
        if writer is not None:
            self._pool.release(writer)

    def _parts(self) -> tuple[IdWriter, SentRecords]:
        assert self._writer is not None
        assert self._sent is not None
        return self._writer, self._sent
