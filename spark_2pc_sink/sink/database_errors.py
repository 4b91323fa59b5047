"""PostgreSQL's refusals of rows, told apart from the failures of a connection or a transaction."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg2

from spark_2pc_sink.errors import ConstraintError
from spark_2pc_sink.sink.identifiers import TableName

# SQLSTATE classes 22 (data exception: JSON that is none, a character the database's encoding has not) and 23
# (integrity constraint violation). Deterministic: the same rows would be refused again.
_ROW_CLASSES = ("22", "23")
# RAISE EXCEPTION in a trigger, without an SQLSTATE of its own.
_RAISED_BY_TRIGGER = "P0001"


@contextmanager
def refused_rows(table: TableName) -> Iterator[None]:
    """Turn PostgreSQL's refusal of a row into a sentence. Every other error passes unchanged.

    Deadlocks, serialization failures, time-outs and lost connections say nothing about the rows: whoever owns the
    transaction decides what becomes of it.

    Raises:
        ConstraintError: a constraint, a type's input check or a trigger refused a row.
    """
    try:
        yield
    except psycopg2.Error as error:
        code = error.pgcode or ""
        if code[:2] not in _ROW_CLASSES and code != _RAISED_BY_TRIGGER:
            raise
        said = error.diag
        raise ConstraintError(
            table=str(table),
            constraint=said.constraint_name or "",
            column=said.column_name or "",
            sqlstate=code,
            detail=_detail(error),
        ) from error


def _detail(error: psycopg2.Error) -> str:
    """What PostgreSQL said, in one line: its message, the detail with the key, and the row of the COPY."""
    said = error.diag
    parts = (said.message_primary, said.message_detail, said.context)
    return "; ".join(" ".join(part.split()) for part in parts if part)
