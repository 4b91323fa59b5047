"""A batch without its bad rows, which go to the dead letters.

Bad rows are removed from the batch itself before any other processing, so they reach no output, and tasks need no
knowledge of them. A batch without bad rows is the frame passed by Spark.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pyspark.sql import Window, functions as F

from jdbc_state.sink_log import sink_log
from spark_2pc_sink.errors import ConfigurationError, TooManyBadRowsError
from spark_2pc_sink.sink.bad_rows.bad_row import IDENTITY, NUMBER, BadRow, BadRows, LookedUpRow
from spark_2pc_sink.sink.rows.row_sql import dead_letter_json, fingerprint_sql, identity_sql
from spark_2pc_sink.sink.spark_sql import literal, quoted

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql import DataFrame
    from sqlalchemy import Connection

    from spark_2pc_sink.options import SinkOptions
    from spark_2pc_sink.sink.bad_rows.bad_row import RefusedRow
    from spark_2pc_sink.sink.bad_rows.dead_letters import DeadLetters

#: If there are too many bad rows: how many an error describes, and in how many characters.
_SHOWN_MAX: Final = 3
_SHOWN_CHARACTERS_MAX: Final = 1_000
_FINGERPRINT: Final = "_2pc_fingerprint"
_JSON: Final = "_2pc_row"
_OCCURRENCES: Final = "_2pc_occurrences"


class FilteredBatch:
    """One batch, and the rows that are left out of it.

    Attributes:
        exact: a search identifies rows by identity, not by a fingerprint that others may share.
    """

    def __init__(self, batch: DataFrame, batch_id: int, options: SinkOptions, dead_letters: DeadLetters) -> None:
        self._batch = batch
        self.frame: DataFrame = batch
        self.batch_id: int = batch_id
        self._options = options
        self._dead_letters = dead_letters
        self._log = sink_log(__name__, options.transactional_id)
        self.bad_rows: BadRows = BadRows()
        self.exact: bool = False

    def recall(self) -> None:
        """Leave out the rows that were left out when the batch was decided."""
        self._leave_out(self._dead_letters.read(self.batch_id))

    def leave_out(self, lanes: Sequence[Sequence[RefusedRow]]) -> bool:
        """Leave out rows that a search has found in `frame`; False if it found none.

        If another row of the batch has the fingerprint of a bad one, none is left out: the next attempt fails as the
        last one did, and the following search identifies rows by their `exact` identity.
        """
        found = BadRows().with_refused(lanes)
        if not found:
            self._log.warning("batch %d: no row was refused when the batch was read again", self.batch_id)
            return False
        self._refuse_too_many(found)
        looked_up = self._looked_up(found)
        identities = {self._name(row): row.identity for row in looked_up}
        if found.keys() - identities.keys():
            raise _other_rows(next(iter(found.values())))
        if len(identities) < len(looked_up):
            self.exact = True
            return True
        lanes = [[replace(row, identity=identities[row.identity]) for row in lane] for lane in lanes]
        self._leave_out(self.bad_rows.with_refused(lanes).described(looked_up))
        count = found.occurrences
        rows, them = ("row", "it") if count == 1 else ("rows", "them")
        self._log.info("batch %d: %d bad %s, retrying without %s", self.batch_id, count, rows, them)
        return True

    def write_dead_letters(self, connection: Connection) -> None:
        """Write the bad rows in the transaction that decides the rest; no-op if there are none."""
        if self.bad_rows:
            self._dead_letters.write(connection, self.batch_id, self.bad_rows)

    def _leave_out(self, bad_rows: BadRows) -> None:
        self.bad_rows = bad_rows
        self.frame = without(self._batch, bad_rows) if bad_rows else self._batch

    def _refuse_too_many(self, found: BadRows) -> None:
        limit, bad = self._options.max_bad_rows, self.bad_rows.occurrences + found.occurrences
        # A share needs the batch's row count, not known so far: a table may get none of its rows, or several of each.
        if bad <= limit.rows and not (limit.share and bad > limit.of(self._batch.count())):
            return
        first = BadRows(list(found.values())[:_SHOWN_MAX])
        texts = {self._name(row): row.row for row in self._looked_up(first)}
        shown = [
            *self.bad_rows.values(),
            *(replace(row, row=texts.get(row.identity, row.row)) for row in first.values()),
        ]
        raise TooManyBadRowsError(
            found=bad,
            rows=self._batch.count(),
            limit=str(limit),
            first=tuple(str(row)[:_SHOWN_CHARACTERS_MAX] for row in shown[:_SHOWN_MAX]),
        )

    def _looked_up(self, found: BadRows) -> list[LookedUpRow]:
        """Look up rows named by a search in the batch. A separate evaluation: only now are they known."""
        schema = self._batch.schema
        meant = _is_among(found, identity_sql(schema) if self.exact else fingerprint_sql(schema))
        named = (f"{fingerprint_sql(schema)} AS {_FINGERPRINT}", f"{identity_sql(schema)} AS {IDENTITY}")
        # Few rows, in one partition: no shuffle into the session's default number of partitions.
        rows = self._batch.filter(meant).selectExpr(*named, f"{dead_letter_json(schema)} AS {_JSON}").repartition(1)
        grouped = rows.groupBy(_FINGERPRINT, IDENTITY).agg(F.count("*"), F.first(_JSON)).collect()
        return [LookedUpRow(*row) for row in grouped]

    def _name(self, row: LookedUpRow) -> str:
        return row.identity if self.exact else row.fingerprint


def _other_rows(refused: BadRow) -> ConfigurationError:
    return ConfigurationError(
        option="bad_rows",
        value="dead_letter",
        rule=f"the batch has different rows each time Spark reads it, so the row that {refused.output} refused "
        f"({refused.reason}) cannot be found again",
        remedy="make every column depend on the source data only: a UDF must return the same result for the "
        "same arguments, without random numbers, the time, or a service whose answers vary. Or write "
        "the results of such a UDF to a table or topic first, and read that in this stream",
    )


def without(batch: DataFrame, bad_rows: BadRows) -> DataFrame:
    """The batch without its bad rows.

    If only some of several equal rows are bad, all equal ones are sent to one task, which counts them.
    """
    if all(row.all_of_them for row in bad_rows.values()):
        return batch.filter(f"NOT ({_is_one_of(batch, bad_rows)})")
    identified = batch.withColumn(IDENTITY, F.expr(identity_sql(batch.schema)))
    lines = [(row.identity, row.occurrences) for row in bad_rows.values()]
    # A small table, which is sent to each task.
    listed = F.broadcast(batch.sparkSession.createDataFrame(lines, f"{IDENTITY} string, {_OCCURRENCES} bigint"))
    # Equal rows have no order among them, and need none.
    ranked = identified.withColumn(NUMBER, F.row_number().over(Window.partitionBy(IDENTITY).orderBy(IDENTITY)))
    kept = ranked.join(listed, IDENTITY, "left").filter(f"{_OCCURRENCES} IS NULL OR {NUMBER} > {_OCCURRENCES}")
    return kept.select(*(F.col(quoted(name)) for name in batch.columns))


def _is_one_of(batch: DataFrame, bad_rows: BadRows) -> str:
    """SQL that is true for a bad row: Spark turns more than a few values into a set, unlike with a join.

    The identity is computed only for rows with the fingerprint of a bad one.
    """
    identities = _is_among(bad_rows, identity_sql(batch.schema))
    fingerprints = [row.fingerprint for row in bad_rows.values() if row.fingerprint is not None]
    if len(fingerprints) < len(bad_rows):
        return identities
    return f"{_is_among(fingerprints, fingerprint_sql(batch.schema))} AND {identities}"


def _is_among(names: Iterable[str], sql: str) -> str:
    """SQL that is true for a row with one of some names.

    These are texts: Spark embeds a number in the code that it compiles, and would recompile it for each batch.
    """
    return f"{sql} IN ({', '.join(map(literal, names))})"
