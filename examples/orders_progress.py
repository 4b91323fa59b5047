"""One line for each batch of a running query: from Spark's progress, and from the sink's history table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import Engine, create_engine, text
from sqlalchemy.exc import OperationalError

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery

_POLL_INTERVAL_S = 0.2

# The sink keeps a line for each of its last batches. Producer id and epoch name the batch's Kafka transaction.
_BATCH = text(
    "SELECT record_count, prepared_transaction_state AS pair, decided_at FROM kafka_transaction_state_history "
    "WHERE transactional_id = :transactional_id AND batch_id = :batch_id ORDER BY decision DESC LIMIT 1"
)


def print_progress(query: StreamingQuery, *, database: str, transactional_id: str) -> None:
    """Print a line for each batch that has rows, until the query ends.

    Args:
        query: just started.
        database: SQLAlchemy URL, as for the sink.
        transactional_id: of the sink.

    Raises:
        StreamingQueryException: the query failed.
    """
    engine = create_engine(database, isolation_level="AUTOCOMMIT", pool_pre_ping=True)
    try:
        with engine.connect() as connection:
            begun = connection.scalar(text("SELECT clock_timestamp()"))  # the clock by which decided_at is set
        for progress in _each_batch(query):
            batch = {"transactional_id": transactional_id, "batch_id": progress.batchId}
            for record_count, pair, decided_at in _settled(engine, batch):
                print(_line(progress, record_count, pair, decided_before=decided_at < begun), flush=True)
    finally:
        engine.dispose()


def _settled(engine: Engine, batch: dict[str, Any]) -> Sequence[Any]:
    """The history of a batch, or nothing while the database restarts: the job must outlive that, as the sink does."""
    try:
        with engine.connect() as connection:
            return connection.execute(_BATCH, batch).all()
    except OperationalError as error:
        print(f"batch {batch['batch_id']:3}: its history cannot be read now: {error.orig}", flush=True)
        return ()


def _each_batch(query: StreamingQuery) -> Iterator[StreamingQueryProgress]:
    """Each batch once, soon after it is done; Spark remembers the last hundred."""
    last, ended = -1, False
    while not ended:
        ended = bool(query.awaitTermination(_POLL_INTERVAL_S))  # type: ignore[arg-type]  # a part of a second will do
        for progress in query.recentProgress:
            # While Spark waits for files it keeps reporting the next batch's id, without rows.
            if progress.batchId > last and progress.numInputRows:
                last = progress.batchId
                yield progress


def _line(progress: StreamingQueryProgress, rows: int, pair: str, *, decided_before: bool) -> str:
    if decided_before:
        return f"batch {progress.batchId:3}: decided before this start ({pair}), not written again"
    seconds = progress.durationMs["triggerExecution"] / 1000
    return f"batch {progress.batchId:3}: {rows:8,} rows in {seconds:5.2f} s, {rows / seconds:8,.0f} rows/s, pair {pair}"
