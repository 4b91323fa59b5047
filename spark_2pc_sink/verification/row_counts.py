"""Row counts: of a table whose rows no record tells, whether it has as many as its batches wrote."""

from __future__ import annotations

from ast import literal_eval
from typing import Final

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.plural import counted
from spark_2pc_sink.verification.claims import Claim
from spark_2pc_sink.verification.differences import Differences
from spark_2pc_sink.verification.evidence import Evidence
from spark_2pc_sink.verification.report import Difference
from spark_2pc_sink.verification.request import Request
from spark_2pc_sink.verification.table_pairs import TablePair, same_table
from spark_2pc_sink.verification.table_shape import read_shape

_WHAT: Final = "the number of its rows"
#: How the text of an output that is a table begins; its name follows.
_ROWS: Final = "Rows("


def count_rows(pair: TablePair, evidence: Evidence, request: Request, differences: Differences) -> None:
    """Compare the number of rows of a table with that of its batches; says so where neither tells the other.

    Args:
        pair: the table.
        evidence: has the history and the snapshot.
        request: of the caller.
        differences: takes what differs.
    """
    why = _why_not(pair, evidence, request)
    if why:
        differences.skip(_WHAT, why)
        return
    with evidence.snapshot.cursor() as cursor:
        try:
            table = read_shape(cursor, pair.table).table
        except ConfigurationError as error:
            differences.skip(_WHAT, error.rule)
            return
        cursor.execute(f"SELECT count(*) FROM {table}")
        ((found,),) = cursor.fetchall()
    wrote = sum(rows_of(claim, pair.table) or 0 for claim in evidence.claims.claims)
    if found != wrote:
        text = f"the table has {counted(found, 'row')}, and its batches wrote {wrote}"
        differences.add(Difference(kind="row_count", text=text))


def rows_of(claim: Claim, table: str) -> int | None:
    """How many rows a batch wrote to a table; None where the history does not tell."""
    tables = {literal_eval(text[len(_ROWS) : -1]): count for text, count in claim.outputs.items() if _ROWS in text}
    if sum(tables.values()) != claim.rows:
        # Where records were sent again, the line tells of these alone.
        return None
    return sum(count for name, count in tables.items() if same_table(name, table))


def _why_not(pair: TablePair, evidence: Evidence, request: Request) -> str:
    """Why the number of rows tells nothing; '' where it does."""
    mode = "append" if pair.layout is None else pair.layout.mode
    claims = evidence.claims.claims
    lanes = [lane for layout in evidence.others.values() for lane in layout.each if lane.table is not None]
    hindrances = {
        "the history is left out": request.table_only,
        f"with mode={mode!r} a batch may write rows that are there": mode != "append",
        "nothing in a row tells its batch": not request.scope.is_all,
        "the history does not reach back to the first batch": not evidence.claims.from_the_start,
        "the history does not tell of each batch how many rows it wrote to each table": any(
            claim.unknown or rows_of(claim, pair.table) is None for claim in claims
        ),
        "another sink writes the table too": any(same_table(str(lane.table), pair.table) for lane in lanes),
    }
    return next((why for why, holds in hindrances.items() if holds), "")
