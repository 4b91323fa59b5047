"""The split of a batch: its rows without the bad ones, which go to the dead letters.

Bad rows are left out of the batch itself, before anything else sees it: so no output gets them, and no task has to
know of them. A batch without bad rows is the frame that Spark has handed over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Window
from pyspark.sql import functions as F

from spark_2pc_sink.errors import TooManyBadRowsError
from spark_2pc_sink.sink.bad_rows.bad_row import BadRows
from spark_2pc_sink.sink.bad_rows.row_identity import IDENTITY, NUMBER, identity_sql
from spark_2pc_sink.sink.table.spark_sql import quoted

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType
    from sqlalchemy import Connection

    from spark_2pc_sink.options import SinkOptions
    from spark_2pc_sink.sink.bad_rows.bad_row import RefusedRow
    from spark_2pc_sink.sink.bad_rows.dead_letters import DeadLetters

#: Of too many bad rows, how many an error describes, and with how many characters.
_SHOWN_MAX: Final = 3
_SHOWN_CHARACTERS_MAX: Final = 1_000
_OCCURRENCES: Final = "_2pc_occurrences"
_LISTED_DDL: Final = f"{IDENTITY} binary, {_OCCURRENCES} bigint"
#: Types of which to_json makes no text in every Spark that is supported; their own text is shown in its place.
_NOT_IN_JSON: Final = frozenset({"TimeType", "CalendarIntervalType", "DayTimeIntervalType", "YearMonthIntervalType"})


class BatchSplit:
    """One batch, and which of its rows are left out.

    Args:
        batch: as Spark has handed it over.
        batch_id: Spark's id of it.
        options: of the sink.
        dead_letters: where bad rows go.

    Attributes:
        frame: the batch without its bad rows.
        bad_rows: those that are left out.
    """

    def __init__(self, batch: DataFrame, batch_id: int, options: SinkOptions, dead_letters: DeadLetters) -> None:
        self._batch = self.frame = batch
        self._batch_id = batch_id
        self._options = options
        self._dead_letters = dead_letters
        self.bad_rows = BadRows()

    @property
    def sifts(self) -> bool:
        """True where bad rows are looked for at all."""
        return self._options.bad_rows == "dead_letter"

    def recall(self) -> None:
        """Leave out what was left out when the batch was decided."""
        self._leave_out(self._dead_letters.read(self._batch_id))

    def leave_out(self, lanes: Iterable[Iterable[RefusedRow]]) -> bool:
        """Leave out rows that a sift has found in `frame`; False where it has found none.

        Args:
            lanes: what it has found in each.

        Raises:
            TooManyBadRowsError: with them there are more than max_bad_rows.
        """
        found = self.bad_rows.with_refused(lanes)
        if found.occurrences == self.bad_rows.occurrences:
            return False
        limit = self._options.max_bad_rows
        # A share is of rows that nobody has counted: a table may get none of them, or several of each.
        if found.occurrences > limit.rows or (limit.share and found.occurrences > limit.of(self._batch.count())):
            rows = self._batch.count()
            first = BadRows(list(found.values())[:_SHOWN_MAX])
            raise TooManyBadRowsError(
                found=found.occurrences,
                rows=rows,
                limit=str(limit),
                first=tuple(str(row)[:_SHOWN_CHARACTERS_MAX] for row in self._described(first).values()),
            )
        self._leave_out(self._described(found))
        return True

    def write_dead_letters(self, connection: Connection) -> None:
        """Write the bad rows, in the transaction that decides the rest; nothing where there are none."""
        if self.bad_rows:
            self._dead_letters.write(connection, self._batch_id, self.bad_rows)

    def _leave_out(self, bad_rows: BadRows) -> None:
        self.bad_rows = bad_rows
        self.frame = without(self._batch, bad_rows) if bad_rows else self._batch

    def _described(self, bad_rows: BadRows) -> BadRows:
        """The same with what the rows are. One more evaluation of the batch: only now it is known which are wanted."""
        meant = _identified(self._batch).filter(_is_one_of(bad_rows))
        rows = meant.groupBy(IDENTITY).agg(F.count("*"), F.first(F.expr(_row_json(self._batch.schema)))).collect()
        return bad_rows.described({bytes(identity): (count, json) for identity, count, json in rows})


def without(batch: DataFrame, bad_rows: BadRows) -> DataFrame:
    """The batch without its bad rows.

    Where only some of equal rows are bad, equal ones are brought to one task, which counts them.

    Args:
        batch: all of it.
        bad_rows: at least one.
    """
    identified = _identified(batch)
    if all(row.all_of_them for row in bad_rows.values()):
        kept = identified.filter(f"NOT {_is_one_of(bad_rows)}")
    else:
        listed = _listed(batch, bad_rows)
        # Equal rows have no order among them, and need none.
        ranked = identified.withColumn(NUMBER, F.row_number().over(Window.partitionBy(IDENTITY).orderBy(IDENTITY)))
        kept = ranked.join(listed, IDENTITY, "left").filter(f"{_OCCURRENCES} IS NULL OR {NUMBER} > {_OCCURRENCES}")
    return kept.select(*(F.col(quoted(name)) for name in batch.columns))


def _identified(batch: DataFrame) -> DataFrame:
    return batch.withColumn(IDENTITY, F.expr(identity_sql(batch.schema)))


def _is_one_of(bad_rows: BadRows) -> str:
    """SQL that is true for a bad row: of more than a few values Spark makes a set, as it does not for a join."""
    listed = ", ".join(f"X'{identity.hex()}'" for identity in bad_rows)
    return f"{IDENTITY} IN ({listed})"


def _listed(batch: DataFrame, bad_rows: BadRows) -> DataFrame:
    """The bad rows as a small table that each task gets whole."""
    lines: list[tuple[Any, ...]] = [(bytearray(row.identity), row.occurrences) for row in bad_rows.values()]
    return F.broadcast(batch.sparkSession.createDataFrame(lines, _LISTED_DDL))


def _row_json(schema: StructType) -> str:
    """SQL for the JSON of a whole row, nulls too."""
    parts = []
    for field in schema.fields:
        name = quoted(field.name)
        shown = f"CAST({name} AS STRING)" if type(field.dataType).__name__ in _NOT_IN_JSON else name
        parts.append(f"{shown} AS {name}")
    return f"to_json(struct({', '.join(parts)}), map('ignoreNullFields', 'false'))"
