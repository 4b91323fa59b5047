"""PostgreSQL's refusals of rows, as errors that name the row or the remedy.

Deadlocks, serialization failures and lost connections are propagated as raised by psycopg2.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import psycopg2

from jdbc_state.sqlstate import AGAINST_POLICY, INSUFFICIENT_PRIVILEGE, is_retriable
from spark_2pc_sink.errors import ConstraintError
from spark_2pc_sink.options.settings import refused

if TYPE_CHECKING:
    from spark_2pc_sink.options.names import TableName


# SQLSTATE classes of errors in a row, or in a trigger that it fires. Deterministic: the same rows would be refused
# again. 22: data exception (invalid JSON, a character missing in the database's encoding). 23: integrity constraint
# violation. 27: triggered data change violation. 38, 39: a function in another language. 44: WITH CHECK OPTION.
# P0: PL/pgSQL, such as RAISE without an explicit code.
_ROW_CLASSES: Final = frozenset({"22", "23", "27", "38", "39", "44", "P0"})
# All classes of PostgreSQL (its manual, appendix A). Any other was invented by the function that raises it.
_SERVER_CLASS: Final = re.compile(
    "0[0-3]|0[89ABFLPZ]|10|2[0-8]|2[BDF]|34|38|39|3[BDF]|40|42|44|5[3-578]|72|F0|HV|P0|XX", re.ASCII
)
# The server's functions that report an error raised by a trigger, in PL/pgSQL and PL/Python: with any code.
_RAISED_BY_TRIGGER: Final = frozenset({"exec_stmt_raise", "PLy_elog_impl"})
# A row beyond a limit: 54000 (too long for an index entry, a page or a tsvector), 54001 (JSON nested too deep), 42622
# (name too long).
_TOO_MUCH: Final = frozenset({"54000", "54001", "42622"})
# … and functions that report an exhausted limit of a transaction or the whole server, with the same code.
_NOT_OF_ROW: Final = frozenset({"GetNewTransactionId", "GetNewMultiXactId", "CommandCounterIncrement"})

# Errors of the table or the role, for every row: 0A000 (row-level security was enabled, which COPY does not support; or
# a column is xml, and the server was built without libxml), 55000 (no replica identity in a publication of updates).
_TABLE_CODES: Final = {
    INSUFFICIENT_PRIVILEGE: "have its owner grant the missing privilege. docs/permissions.md lists those that the "
    "sink needs; a trigger, or a table that it writes to, may need more",
    "0A000": "change what the message names: the table, or the type of a column (xml becomes text); or the sink's mode",
    "55000": "change the table as the message says",
}
# A statement that PostgreSQL cannot run (42: a missing column or table, syntax), inside a function in PL/pgSQL or a
# similar language, which the error context names in every server language.
_STATEMENT_CLASS: Final = "42"
_IN_FUNCTION: Final = "PL/"
# … and errors of input functions about a text: 42 (an invalid tsvector or path, a missing regclass), 3F (no such
# schema), XX000 (an invalid hstore, before PostgreSQL 16).
_NO_VALUE: Final = re.compile("42...|3F000|XX000", re.ASCII)
_CORRECT_FUNCTION: Final = "correct the function that the message names, which a trigger runs, or drop the trigger"


@contextmanager
def refused_rows(table: TableName, *, casts: bool = False) -> Iterator[None]:
    """Turn PostgreSQL's refusal of a row, or of the role, into a sentence. Other errors are propagated unchanged.

    Deadlocks, serialization failures, timeouts and lost connections are not about the rows: the owner of the
    transaction decides how to proceed. A trigger that raises one of their codes requests the same. ``casts``: the
    statement converts texts to values.

    Raises:
        ConstraintError: a constraint, a type's input check, a policy or a trigger refused a row.
        ConfigurationError: the table accepts no rows of this role, or a function of its triggers cannot run.
    """
    try:
        yield
    except psycopg2.Error as error:
        code = error.pgcode or ""
        said = error.diag
        in_function = _IN_FUNCTION in (said.context or "")
        no_value = casts and not in_function and code != INSUFFICIENT_PRIVILEGE and _NO_VALUE.fullmatch(code)
        if no_value or _refuses_row(code, said.source_function or ""):
            named = {"constraint": said.constraint_name or "", "column": said.column_name or ""}
            raise ConstraintError(table=str(table), **named, sqlstate=code, detail=_detail(error)) from error
        remedy = _TABLE_CODES.get(code)
        if remedy is None and code.startswith(_STATEMENT_CLASS) and in_function:
            remedy = _CORRECT_FUNCTION
        if remedy is not None:
            rule = f"PostgreSQL refused all rows: {_detail(error)} [{code}]"
            raise refused("table", str(table), rule, remedy) from error
        raise


def _refuses_row(code: str, source_function: str) -> bool:
    """True for an error that would recur with the same rows; ``code`` is '' for a connection that broke.

    The name of a server function does not depend on the language of messages.
    """
    if not code or is_retriable(code):
        return False
    if code in _TOO_MUCH:
        return source_function not in _NOT_OF_ROW
    if code[:2] in _ROW_CLASSES or not _SERVER_CLASS.fullmatch(code[:2]):
        return True
    return source_function in _RAISED_BY_TRIGGER or source_function == AGAINST_POLICY


def _detail(error: psycopg2.Error) -> str:
    """PostgreSQL's message in one line: text, detail with the key, hint, and the row of the COPY."""
    said = error.diag
    parts = (said.message_primary, said.message_detail, said.message_hint, said.context)
    return "; ".join(" ".join(part.split()) for part in parts if part)
