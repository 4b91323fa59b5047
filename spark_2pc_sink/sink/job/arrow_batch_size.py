"""The size of the Arrow batches that Spark hands to Python workers, in rows and in bytes.

Rows: each Arrow batch costs a worker a millisecond or two whatever it holds, and one of many megabytes no longer fits
the processor's caches. Spark's 10 000 rows are few where they have 50 bytes, and many where they have 2 000. So the
number follows the mean of the batch before. The first batch of a run has no such mean: bytes are counted there, which
alone bounds its Arrow batches, and light rows need not stop at 10 000.

Bytes: they are counted only where Spark is told a bound, and Spark asks every column for its size after every row,
which was a quarter of the time of its tasks. So it does not count where the batch before was shared out, succeeded, and
would have had room without a bound.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_2pc_sink.sink.contract.receipts import TaskResults

_SETTING: Final = "spark.sql.execution.arrow.maxBytesPerBatch"
_ROWS_SETTING: Final = "spark.sql.execution.arrow.maxRecordsPerBatch"
_ROWS_DEFAULT: Final = 10_000
#: With it Spark does not count; the default of some versions is less.
_UNBOUNDED: Final = str(2**31 - 1)
#: What an Arrow batch weighs at most: where bytes are counted, and by the mean of the batch before where they are not.
#: 4 000 rows of 2 KB: enough that the cost of an Arrow batch is lost in it. With 32 MiB such rows cost a worker a third
#: more time.
ARROW_BATCH_BYTES: Final = 8 * 1024 * 1024
#: The bound is lifted only if as many rows as Spark puts into one Arrow batch weigh no more than this, by the mean of
#: the batch before.
UNBOUNDED_ROWS_BYTES_MAX: Final = 64 * 1024 * 1024
#: As few or as many rows as one is given by that mean: with more nothing becomes faster, and rows that turn out to be
#: heavier weigh more.
AIMED_ROWS_MIN: Final = 128
AIMED_ROWS_MAX: Final = 32_768


@dataclass(frozen=True)
class ArrowBatchLimits:
    """How large Arrow batches may be.

    Attributes:
        rows: how many rows at most; 0 or less for any number.
        rows_given: somebody else has set them, and they stay.
        roomy: no bound of bytes is needed.
    """

    rows: int = _ROWS_DEFAULT
    rows_given: bool = False
    roomy: bool = False

    def after(self, results: TaskResults) -> ArrowBatchLimits:
        """The bounds for the batch after one that was shared out and succeeded, with these results."""
        rows = self.rows
        if not self.rows_given:
            # One without rows says nothing of the next, whose bytes may not be counted.
            known = results.arrow_bytes > 0
            rows = _aimed_rows(results.arrow_bytes / results.rows) if known else min(rows, _ROWS_DEFAULT)
        roomy = rows > 0 and results.arrow_bytes * rows <= UNBOUNDED_ROWS_BYTES_MAX * results.rows
        return replace(self, rows=rows, roomy=roomy)

    def settings(self) -> dict[str, str]:
        """As Spark's settings."""
        return {_ROWS_SETTING: str(self.rows), _SETTING: _UNBOUNDED if self.roomy else str(ARROW_BATCH_BYTES)}


class ArrowBatchSize:
    """Sets rows and bytes before each batch, where nobody else has set them. One object serves one run.

    The stream has a session of its own, so nobody else's workers see it.
    """

    def __init__(self) -> None:
        self._limits = ArrowBatchLimits()
        #: The settings that nobody else has set, and what they are now; None before the first batch.
        self._ours: dict[str, str] | None = None

    def apply(self, spark: SparkSession) -> None:
        """Set them for the next job.

        Args:
            spark: the session of the stream.
        """
        if self._ours is None:
            self._ours = self._look(spark)
        wanted = {name: value for name, value in self._limits.settings().items() if name in self._ours}
        for name, value in wanted.items():
            if value != self._ours[name]:
                spark.conf.set(name, value)
        self._ours = wanted

    def note(self, results: TaskResults) -> None:
        """A job has succeeded.

        Args:
            results: of its tasks.
        """
        self._limits = self._limits.after(results)

    def forget(self) -> None:
        """A job has failed, perhaps for lack of memory; or a batch was small, which says nothing about the next one."""
        self._limits = replace(self._limits, roomy=False)

    def _look(self, spark: SparkSession) -> dict[str, str]:
        """The settings that are left to us, as they are."""
        ours = {}
        # Spark 4.0 does not know the bound of bytes.
        counts = spark.conf.isModifiable(_SETTING)
        rows = spark.conf.get(_ROWS_SETTING, None)
        if rows is None:
            ours[_ROWS_SETTING] = str(_ROWS_DEFAULT)
            if counts:
                self._limits = ArrowBatchLimits(rows=AIMED_ROWS_MAX)
        else:
            self._limits = ArrowBatchLimits(rows=int(rows), rows_given=True)
        if spark.conf.get(_SETTING, _UNBOUNDED) == _UNBOUNDED:
            ours[_SETTING] = _UNBOUNDED
        return ours


def _aimed_rows(row_bytes: float) -> int:
    """A power of two, so that it changes only where the rows do."""
    rows = int(min(max(ARROW_BATCH_BYTES / row_bytes, AIMED_ROWS_MIN), AIMED_ROWS_MAX))
    return 1 << (rows.bit_length() - 1)
