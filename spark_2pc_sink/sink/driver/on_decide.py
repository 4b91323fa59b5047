"""User code in the deciding transaction: SQL or a function (``on_decide``).

It runs after the rows of the batch and before the state row, so its effects exist if and only if the batch does. COMMIT
and ROLLBACK belong to the driver: an attempt of either through SQLAlchemy is refused before the database sees it. On
psycopg2's own connection it cannot be prevented, but it is detected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Final

from sqlalchemy import Connection, event, text

from spark_2pc_sink.errors import BatchRetryError, DualWriteError, LocalProtocolError
from spark_2pc_sink.options.sql_text import transaction_command

_PLACE: Final = (
    "SELECT pg_catalog.pg_current_xact_id()::text AS transaction, "
    "pg_catalog.current_setting('search_path') AS search_path"
)
_RULE: Final = "on_decide may neither end the deciding transaction nor leave another search_path; savepoints are fine"


@dataclass(frozen=True, kw_only=True)
class DecidingBatch:
    """A batch whose rows are in the deciding transaction, and whose records in Kafka await their commit.

    Attributes:
        transactional_id: the sink's id.
        batch_id: Spark's id.
        prepared: ``producerId:epoch`` of the Kafka transaction; '' for a batch without records.
        row_count: rows of the batch, including those that delete.
        record_count: records in Kafka.
        rows_deleted: see `BatchReport`.
        rows_left_out: see `BatchReport`.
    """

    transactional_id: str
    batch_id: int
    prepared: str
    row_count: int
    record_count: int
    rows_deleted: int = 0
    rows_left_out: int = 0


def run_on_decide(
    given: Sequence[str] | Callable[[Connection, DecidingBatch], object], connection: Connection, batch: DecidingBatch
) -> None:
    """Run the user's addition once: a function, or SQL texts with ``:batch_id`` and other fields of `DecidingBatch`."""
    before = connection.exec_driver_sql(_PLACE).one()
    try:
        with _kept_open(connection):
            if callable(given):
                given(connection, batch)
            else:
                for statement in given:
                    connection.execute(text(statement), asdict(batch))
        after = connection.exec_driver_sql(_PLACE).one()
    except DualWriteError:
        raise
    except Exception as error:
        raise BatchRetryError(reason=f"on_decide raised {type(error).__name__}: {error}") from error
    left = ""
    if after.transaction != before.transaction:
        left = "another transaction: rows of the batch may be in the table without its decision"
    elif after.search_path != before.search_path:
        left = f"search_path={after.search_path}, which was {before.search_path}"
    if left:
        raise LocalProtocolError(operation=f"on_decide of batch {batch.batch_id}", state=f"it left {left}", rule=_RULE)


@contextmanager
def _kept_open(connection: Connection) -> Iterator[None]:
    """Refuse to end the transaction within a block."""

    def refuse(_connection: Connection) -> None:
        raise LocalProtocolError(operation="COMMIT or ROLLBACK", state="in on_decide", rule=_RULE)

    def look(_connection: Connection, _cursor: Any, statement: str, *_: Any) -> None:
        command = transaction_command(statement)
        if command is not None:
            raise LocalProtocolError(operation=command.upper(), state="in on_decide", rule=_RULE)

    listeners = (("commit", refuse), ("rollback", refuse), ("before_cursor_execute", look))
    for name, listener in listeners:
        event.listen(connection, name, listener)
    try:
        yield
    finally:
        for name, listener in listeners:
            event.remove(connection, name, listener)
