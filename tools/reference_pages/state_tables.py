"""The page of the tables that the state store keeps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sqlalchemy import Table
from sqlalchemy.dialects import postgresql

from jdbc_state import Actor, HistoryLine, KeptRecords, StateRow, StoreSettings
from jdbc_state.actions import ACTIONS, ActionLine
from jdbc_state.history import EVENTS
from jdbc_state.model import STATUSES, TRANSITIONS
from jdbc_state.schema import ACTIONS_PRIVILEGES, HISTORY_PRIVILEGES, STATE_PRIVILEGES, VERSION, StateTables
from tools.reference_pages.markdown import attributes_of, code, plain, table, with_part

#: Of the picture of the moves: the longest status, and where an arrow ends.
_STATUS_COLUMNS: Final = 8
_ARROW_COLUMNS: Final = 56
_PAGE: Final = """\
# State tables

`make reference-pages` makes this page of `jdbc_state`. A test compares it. The tables are of version {version}. Their
names are those of the options `state_schema`, `state_table` and `history_table`; here are the defaults.
`spark-2pc state ddl` prints the statements that make them, [Permissions](../permissions.md#postgresql) has them too,
and [the design](../design/state.md) has the reasons.

## The state row: `{state_name}`

One row for each transactional id. A driver needs {state_privileges}.

{state}

Its status moves along this table, and no other way:

{moves}

## The history: `{history_name}`

A copy of the row for each decision, the newest of which is the row itself. A driver needs {history_privileges}.
It has all columns of the state row; its key is `transactional_id`, `decision`. And it has:

{history}

{events}

## The actions: `{actions_name}`

What drivers and people did. A driver needs {actions_privileges}. [History](../history.md) shows them.

{actions}

{kinds}

## Kept records: `{records_name}`

Only the store of a [service](../service.md) has this table. A driver needs {state_privileges}.

{records}
"""


def state_tables_page() -> str:
    """The page as Markdown."""
    tables = StateTables(StoreSettings())
    line = {**attributes_of(ActionLine), **attributes_of(Actor)}
    records = {"transactional_id": "the id of the decision", **attributes_of(KeptRecords)}
    row = attributes_of(StateRow)
    return _PAGE.format(
        version=VERSION,
        state_name=tables.state.fullname,
        history_name=tables.history.fullname,
        actions_name=tables.actions.fullname,
        records_name=tables.records.fullname,
        state_privileges=", ".join(STATE_PRIVILEGES),
        history_privileges=", ".join(HISTORY_PRIVILEGES),
        actions_privileges=", ".join(ACTIONS_PRIVILEGES),
        state=_columns(tables.state, row),
        moves=table(
            ("operation", "from", "to", "why it is legal"),
            ((code(move.operation), move.before, move.after, move.why) for move in TRANSITIONS),
        ),
        history=_columns(tables.history, attributes_of(HistoryLine), leave_out=row),
        events=table(("`event`", "what wrote the line"), ((code(name), plain(text)) for name, text in EVENTS.items())),
        actions=_columns(tables.actions, line),
        kinds=table(("`action`", "what was done"), ((code(name), plain(text)) for name, text in ACTIONS.items())),
        records=_columns(tables.records, records),
    )


def moves_picture() -> str:
    """The statuses and the moves between them, drawn: a line for each pair of statuses."""
    lines = []
    for before in STATUSES:
        operations: dict[str, list[str]] = {}
        for move in TRANSITIONS:
            if move.before == before:
                operations.setdefault(move.after, []).append(move.operation)
        for number, (after, names) in enumerate(operations.items(), 1):
            branch = ("─" if len(operations) == 1 else "┬") if number == 1 else "├" if number < len(operations) else "└"
            start = f"{before:<{_STATUS_COLUMNS}}─" if number == 1 else " " * (_STATUS_COLUMNS + 1)
            lines.append(f"{start}{branch}─ {', '.join(names)} ".ljust(_ARROW_COLUMNS, "─") + f"▶ {after}")
    return "".join(f"{line}\n" for line in lines)


def with_picture(page: str) -> str:
    """docs/how-it-works.md with the picture of the moves."""
    return with_part(page, "moves", f"```\n{moves_picture()}```")


def _columns(of: Table, about: Mapping[str, str], leave_out: Mapping[str, Any] | None = None) -> str:
    """The columns, each with its type and what the code says of it."""
    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
    return table(
        ("column", "type", "holds"),
        (
            (
                code(column.name),
                column.type.compile(dialect).lower() + ("" if not column.nullable else ", or null"),
                about[column.name].replace("None", "null"),
            )
            for column in of.columns
            if column.name not in (leave_out or {})
        ),
    )
