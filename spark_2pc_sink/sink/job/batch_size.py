"""Size of Arrow batches, and whether the driver encodes a batch itself: both depend on the previous batch.

**Arrow batches.** Each costs a worker a millisecond or two regardless of its size, and one of many megabytes no longer
fits the processor's caches: the number of rows follows the mean row size of the previous batch. Without one, bytes are
bounded, which Spark counts by asking every column for its size after every row, a quarter of its tasks' time.

**Small batches** take longer to distribute than to write: the driver collects them with a one-task job; see
docs/performance.md. A wrong guess is cheap: at most SMALL_ROWS_MAX rows are collected, and no data is sent before all
have arrived.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from pyspark.sql import SparkSession

from spark_2pc_sink.sink.job.task_plan import TaskResults

_SETTING: Final = "spark.sql.execution.arrow.maxBytesPerBatch"
_ROWS_SETTING: Final = "spark.sql.execution.arrow.maxRecordsPerBatch"
_ROWS_DEFAULT: Final = 10_000
#: Disables Spark's counting; the default of some versions is lower.
_UNBOUNDED: Final = str(2**31 - 1)
#: Maximum bytes of an Arrow batch: where bytes are counted, and by the mean of the previous batch where they are not.
#: 4 000 rows of 2 KB: enough to make the cost per Arrow batch negligible. With 32 MiB such rows cost a worker a third
#: more time.
ARROW_BATCH_BYTES: Final = 8 * 1024 * 1024
#: The bound is lifted only if as many rows as Spark puts into one Arrow batch take no more bytes than this, by the mean
#: of the previous batch.
UNBOUNDED_ROWS_BYTES_MAX: Final = 64 * 1024 * 1024
#: Limits of the row count derived from that mean: more rows would not be faster, and would take more memory if rows
#: turn out larger.
AIMED_ROWS_MIN: Final = 128
AIMED_ROWS_MAX: Final = 32_768


@dataclass
class ArrowBatchSize:
    """Sets rows and bytes of Arrow batches before each batch, unless the user has set them. One object serves one run.

    The stream has its own session, so other queries' workers are not affected.
    """

    #: 0 or less for no limit.
    rows: int = _ROWS_DEFAULT
    #: The user has set the row limit; it is kept.
    rows_given: bool = False
    #: No bound of bytes is needed.
    unbounded: bool = False
    #: Settings that the user has not set, with their current values; None before the first batch.
    _ours: dict[str, str] | None = field(default=None, compare=False)

    def apply(self, spark: SparkSession) -> None:
        if self._ours is None:
            self._ours = self._free_settings(spark)
        limits = {_ROWS_SETTING: str(self.rows), _SETTING: _UNBOUNDED if self.unbounded else str(ARROW_BATCH_BYTES)}
        for name, value in limits.items():
            if self._ours.get(name, value) != value:
                spark.conf.set(name, value)
                self._ours[name] = value

    def note(self, results: TaskResults) -> None:
        """The bounds for the batch after one that was distributed and succeeded, with these results."""
        if not self.rows_given:
            if results.arrow_bytes:
                aimed = ARROW_BATCH_BYTES * results.rows / results.arrow_bytes
                # A power of two, so that it changes only with the size of rows.
                self.rows = 1 << (int(min(max(aimed, AIMED_ROWS_MIN), AIMED_ROWS_MAX)).bit_length() - 1)
            else:
                # A batch without rows gives no information about the next, whose bytes may not be counted.
                self.rows = min(self.rows, _ROWS_DEFAULT)
        self.unbounded = self.rows > 0 and results.arrow_bytes * self.rows <= UNBOUNDED_ROWS_BYTES_MAX * results.rows

    def forget(self) -> None:
        """Reset after a failed job, perhaps for lack of memory; or a small batch, which does not predict the next."""
        self.unbounded = False

    def _free_settings(self, spark: SparkSession) -> dict[str, str]:
        """The current values of the settings that the user has not set."""
        ours = {}
        rows = spark.conf.get(_ROWS_SETTING, None)
        if rows is None:
            ours[_ROWS_SETTING] = str(_ROWS_DEFAULT)
            # Spark 4.0 does not have the bound of bytes.
            if spark.conf.isModifiable(_SETTING):
                self.rows = AIMED_ROWS_MAX
        else:
            self.rows, self.rows_given = int(rows), True
        if spark.conf.get(_SETTING, _UNBOUNDED) == _UNBOUNDED:
            ours[_SETTING] = _UNBOUNDED
        return ours


#: Maximum rows that the driver encodes itself; larger batches are distributed.
SMALL_ROWS_MAX: Final = 20_000
#: The same for the first batch: a query may begin with everything in its source.
FIRST_ROWS_MAX: Final = 1_000
#: A first batch is not tried if its source has more bytes, by Spark's estimate: that would take a fifth of a second.
FIRST_BYTES_MAX: Final = 4 * 1024 * 1024
#: The same in bytes of Arrow columns: the driver holds them all.
SMALL_BYTES_MAX: Final = 16 * 1024 * 1024
#: A slower job with few rows is compared with a distributed one.
SMALL_S_MAX: Final = 1.0
#: After a batch that was slow or large for one task, this many batches are distributed before one is collected again;
#: and this many are collected, regardless of their time, if distributing was no faster.
PATIENCE_BATCHES: Final = 20


class SmallBatches:
    """Remembers the cost of a run's last batches. One object serves one run."""

    def __init__(self) -> None:
        self._small = self._first = False
        # Remaining batches to distribute; and to collect, regardless of time.
        self._wait = self._trusted = 0
        #: Duration of the last collected batch.
        self._collected_s: float | None = None

    def try_first(self) -> None:
        self._small = self._first = True

    @property
    def rows_max(self) -> int:
        return FIRST_ROWS_MAX if self._first else SMALL_ROWS_MAX

    @property
    def expected(self) -> bool:
        return self._small and self._wait == 0

    def note(self, results: TaskResults, seconds: float, *, collected: bool) -> None:
        self._wait = max(0, self._wait - 1)
        few = results.rows <= SMALL_ROWS_MAX and results.arrow_bytes <= SMALL_BYTES_MAX
        slow = seconds > SMALL_S_MAX
        # A first batch is also slow for other reasons: the virtual machine has just started.
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
        """Record that there were more rows than the driver accepts, or that they could not be collected."""
        self._small, self._wait = False, 0 if self._first else PATIENCE_BATCHES
        self._first = False
