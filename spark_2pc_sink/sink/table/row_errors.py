"""The errors of rows that PostgreSQL refuses, told apart from failures of a connection or a transaction."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import psycopg2

from jdbc_state.sqlstate import AGAINST_POLICY, INSUFFICIENT_PRIVILEGE, is_retriable
from spark_2pc_sink.errors import ConfigurationError, ConstraintError
from spark_2pc_sink.sink.table.identifiers import TableName

# SQLSTATE classes of what is wrong with a row, or with a trigger that it meets. Deterministic: the same rows would be
# refused again. 22: data exception (JSON that is none, a character the database's encoding has not). 23: integrity
# constraint violation. 27: triggered data change violation. 38, 39: a function in another language. 44: WITH CHECK
# OPTION. P0: PL/pgSQL, such as RAISE without a code of its own.
_ROW_CLASSES: Final = frozenset({"22", "23", "27", "38", "39", "44", "P0"})
# All classes that PostgreSQL has (its manual, appendix A). Any other was made up by a function that raises it.
_SERVER_CLASS: Final = re.compile(
    "0[0-3]|0[89ABFLPZ]|10|2[0-8]|2[BDF]|34|38|39|3[BDF]|40|42|44|5[3-578]|72|F0|HV|P0|XX", re.ASCII
)
# The functions of the server that report an error because a trigger says so, in PL/pgSQL and PL/Python: with any code.
_RAISED_BY_TRIGGER: Final = frozenset({"exec_stmt_raise", "PLy_elog_impl"})
# A row that is too much: 54000 (longer than an index entry, a page or a tsvector can be), 54001 (JSON nested too deep),
# 42622 (longer than a name can be).
_TOO_MUCH: Final = frozenset({"54000", "54001", "42622"})
# … and the functions that report the end of what a transaction or the whole server has, with the same code.
_NOT_OF_ROW: Final = frozenset({"GetNewTransactionId", "GetNewMultiXactId", "CommandCounterIncrement"})

# What is wrong is the table or the role, for every row: 0A000 (row-level security was switched on, and COPY has none),
# 55000 (no replica identity in a publication of updates).
_TABLE_CODES: Final = {
    INSUFFICIENT_PRIVILEGE: "have its owner grant the role what is missing. docs/permissions.md lists what the "
    "sink needs; a trigger, or a table that it writes to, may need more",
    "0A000": "change the table so that the role may write to it again, or the sink's mode",
    "55000": "change the table as the message says",
}
# A statement that PostgreSQL cannot run (42: a column or table that is not there, syntax), inside of a function in
# PL/pgSQL or another such language, whose name its context has in every language of the server.
_STATEMENT_CLASS: Final = "42"
_IN_FUNCTION: Final = "PL/"
# … and what input functions say of a text: 42 (a tsvector or path that is none, a regclass that is not there), 3F (no
# such schema), XX000 (an hstore that is none, before PostgreSQL 16).
_NO_VALUE: Final = re.compile("42...|3F000|XX000", re.ASCII)
_CORRECT_FUNCTION: Final = "correct the function that the message names, which a trigger runs, or drop the trigger"


@contextmanager
def refused_rows(table: TableName, *, casts: bool = False) -> Iterator[None]:
    """Turn PostgreSQL's refusal of a row, or of the role, into a sentence. Every other error passes unchanged.

    Deadlocks, serialization failures, time-outs and lost connections say nothing about the rows: whoever owns the
    transaction decides what becomes of it. A trigger that raises one of their codes asks for the same.

    Args:
        table: that the rows are for.
        casts: the statement makes values of texts.

    Raises:
        ConstraintError: a constraint, a type's input check, a policy or a trigger refused a row.
        ConfigurationError: the table takes no rows of this role, or a function of its triggers cannot run.
    """
    try:
        yield
    except psycopg2.Error as error:
        code = error.pgcode or ""
        said = error.diag
        in_function = _IN_FUNCTION in (said.context or "")
        no_value = casts and not in_function and code != INSUFFICIENT_PRIVILEGE and _NO_VALUE.fullmatch(code)
        if no_value or _refuses_row(code, said.source_function or ""):
            raise ConstraintError(
                table=str(table),
                constraint=said.constraint_name or "",
                column=said.column_name or "",
                sqlstate=code,
                detail=_detail(error),
            ) from error
        remedy = _TABLE_CODES.get(code)
        if remedy is None and code.startswith(_STATEMENT_CLASS) and in_function:
            remedy = _CORRECT_FUNCTION
        if remedy is not None:
            raise ConfigurationError(
                option="table",
                value=str(table),
                rule=f"PostgreSQL takes no rows for it: {_detail(error)} [{code}]",
                remedy=remedy,
            ) from error
        raise


def _refuses_row(code: str, source_function: str) -> bool:
    """True for an error that the same rows meet again.

    Args:
        code: the SQLSTATE; '' for a connection that broke.
        source_function: of the server, which its messages name in no language.
    """
    if not code or is_retriable(code):
        return False
    if code in _TOO_MUCH:
        return source_function not in _NOT_OF_ROW
    if code[:2] in _ROW_CLASSES or not _SERVER_CLASS.fullmatch(code[:2]):
        return True
    return source_function in _RAISED_BY_TRIGGER or source_function == AGAINST_POLICY


def _detail(error: psycopg2.Error) -> str:
    """What PostgreSQL said, in one line: its message, the detail with the key, its hint, and the row of the COPY."""
    said = error.diag
    parts = (said.message_primary, said.message_detail, said.message_hint, said.context)
    return "; ".join(" ".join(part.split()) for part in parts if part)
