"""How large the Arrow batches are that Spark hands to Python workers.

Spark takes up to 10 000 rows for one, whatever they weigh, and counts their bytes only where it is told a bound. A
bound is needed: of pieces, which are large, 10 000 are whole gigabytes. But Spark asks every column for its size after
every row, which was a quarter of the time that its tasks took. So it does not count where the batch before was shared
out, succeeded, and would have had room without a bound; a batch that turns out to be far larger gives itself up and is
tried again with one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_2pc_sink.sink.receipts import TaskResults

_SETTING: Final = "spark.sql.execution.arrow.maxBytesPerBatch"
_ROWS_SETTING: Final = "spark.sql.execution.arrow.maxRecordsPerBatch"
_ROWS_DEFAULT: Final = "10000"
#: Spark's default, with which it does not count.
_UNBOUNDED: Final = str(2**31 - 1)
#: A few pieces, or 10 000 rows of 3 KB: enough that the cost of a batch is lost in it, and little beside a worker.
ARROW_BATCH_BYTES_MAX: Final = 32 * 1024 * 1024
#: Without a bound a task may get all of its pieces at once: so many bytes of pieces have the batches of which it may.
#: The same number makes a source give up.
UNBOUNDED_BYTES_MAX: Final = 512 * 1024 * 1024
#: Without a bound an Arrow batch has as many rows as Spark allows: so many bytes they may weigh, by the mean of the
#: batch before.
UNBOUNDED_ROWS_BYTES_MAX: Final = 64 * 1024 * 1024


class ArrowBound:
    """Sets the bound before each batch, where nobody else has set one. One object serves one run.

    The stream has a session of its own, so nobody else's workers see it. Spark 4.0 does not know the setting.
    """

    def __init__(self) -> None:
        self._ours: bool | None = None
        self._rows_max = 0
        self._set: bool | None = None
        self._roomy = False

    def apply(self, spark: SparkSession) -> int | None:
        """Set it for the next job; the bytes of pieces at which a source has to give up, None for no limit.

        Args:
            spark: the session of the stream.
        """
        if self._ours is None:
            self._rows_max = int(spark.conf.get(_ROWS_SETTING, _ROWS_DEFAULT) or _ROWS_DEFAULT)
            self._ours = spark.conf.get(_SETTING, _UNBOUNDED) == _UNBOUNDED
        if not self._ours:
            return None
        if self._set is not self._roomy:
            spark.conf.set(_SETTING, _UNBOUNDED if self._roomy else str(ARROW_BATCH_BYTES_MAX))
            self._set = self._roomy
        return UNBOUNDED_BYTES_MAX if self._roomy else None

    def note(self, results: TaskResults) -> None:
        """A job has succeeded.

        Args:
            results: of its tasks.
        """
        self._roomy = (
            self._rows_max > 0
            and results.piece_bytes <= UNBOUNDED_BYTES_MAX
            and results.arrow_bytes * self._rows_max <= UNBOUNDED_ROWS_BYTES_MAX * results.rows
        )

    def forget(self) -> None:
        """A job has failed, perhaps for lack of memory; or a batch was small, which says nothing about the next one."""
        self._roomy = False
