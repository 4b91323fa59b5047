"""How much one Python worker is handed, and whether the driver encodes a batch itself: both follow the batch before.

**Arrow batches.** Rows: each Arrow batch costs a worker a millisecond or two whatever it holds, and one of many
megabytes no longer fits the processor's caches. So their number follows the mean of the batch before. The first batch
of a run has no such mean: bytes are counted there, which alone bounds its Arrow batches. Bytes are counted only where
Spark is told a bound, and Spark asks every column for its size after every row, which was a quarter of the time of its
tasks. So it does not count where the batch before was shared out, succeeded, and would have had room without a bound.

**Small batches.** A batch of a few rows takes longer to share out than to write. So the driver collects it by one job
of one task, and encodes it without Python workers, where the batch before was small. A wrong guess is cheap: at most
SMALL_ROWS_MAX rows are collected, and nothing is sent before all have arrived. Before the first batch of a run nothing
is known; where its rows come straight from the source (`ClassicQuery.comes_straight`), FIRST_ROWS_MAX are tried.

A job of few rows that takes long has its work before them (a large scan, a large state), which one task would do alone,
or it waits for cores that others use. So the batch after it is shared out. Where that takes as long, cores are what is
short, and tasks, which need more of them, are no remedy.
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


#: Rows that the driver takes by itself; more are shared out.
SMALL_ROWS_MAX: Final = 20_000
#: The same of a batch before which there was none: a query may begin with all that its source has.
FIRST_ROWS_MAX: Final = 1_000
#: The same in bytes of Arrow columns: the driver holds them all.
SMALL_BYTES_MAX: Final = 16 * 1024 * 1024
#: A job that takes longer with few rows is compared with one that is shared out.
SMALL_S_MAX: Final = 1.0
#: After a batch that was slow or large for one task, so many batches are shared out before one is collected again; and
#: so many are collected, whatever they take, where sharing out was no quicker.
PATIENCE_BATCHES: Final = 20


class SmallBatches:
    """Remembers what the last batches of a run took. One object serves one run."""

    def __init__(self) -> None:
        self._small = False
        self._wait = 0
        self._first = False
        # Batches that are collected, whatever they take; and what the last one took that was.
        self._trusted = 0
        self._collected_s: float | None = None

    def try_first(self) -> None:
        """No batch was written yet; see whether the first one is small."""
        self._small = self._first = True

    @property
    def rows_max(self) -> int:
        """How many rows of the next batch the driver takes by itself."""
        return FIRST_ROWS_MAX if self._first else SMALL_ROWS_MAX

    @property
    def expected(self) -> bool:
        """True where the next batch is likely to be small."""
        return self._small and self._wait == 0

    def note(self, *, rows: int, arrow_bytes: int, seconds: float, collected: bool) -> None:
        """A batch was written.

        Args:
            rows: how many it had.
            arrow_bytes: what they weighed.
            seconds: what its job took.
            collected: whether the driver did it.
        """
        self._wait = max(0, self._wait - 1)
        few, slow = rows <= SMALL_ROWS_MAX and arrow_bytes <= SMALL_BYTES_MAX, seconds > SMALL_S_MAX
        # A first batch is slow for other reasons, too: the virtual machine is young.
        first, self._first = self._first, False
        if not collected:
            no_quicker = self._collected_s is not None and seconds >= self._collected_s
            if few and slow and no_quicker:
                self._wait, self._trusted = 0, PATIENCE_BATCHES
            self._small = few and (not slow or no_quicker)
        elif first:
            self._small = few
        else:
            self._collected_s = seconds
            self._small = few and (not slow or self._trusted > 0)
            self._trusted = max(0, self._trusted - 1)
            if not self._small:
                self._wait = PATIENCE_BATCHES

    def note_too_large(self) -> None:
        """There were more rows than the driver takes, or they could not be collected."""
        self._small, self._wait = False, 0 if self._first else PATIENCE_BATCHES
        self._first = False
