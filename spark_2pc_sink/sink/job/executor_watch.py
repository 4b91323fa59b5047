"""The watch over executors: each is tried once, also one that joins while the query runs.

An executor joins by dynamic allocation, or in place of one that was lost. Spark hands it tasks at once, so it is tried
at the beginning of the next attempt of a batch. In an attempt that runs already it is named when a task fails there.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

from jdbc_state.sink_log import sink_log
from spark_2pc_sink.sink.job.executor_check import check_executors, check_late_executors, naming_executors
from spark_2pc_sink.sink.job.session_facts import has_executors

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from pyspark.sql import SparkSession

    from spark_2pc_sink.options import SinkOptions
    from spark_2pc_sink.sink.job.session_facts import SessionFacts


class ExecutorWatch:
    """Tries executors for one run of a query; does nothing where tasks run in the driver's process.

    Args:
        spark: the session of the first batch.
        options: of the sink.
        facts: of the session.
        can_send: tasks can bring their rows to the driver; else they stage all of them.
    """

    def __init__(self, spark: SparkSession, options: SinkOptions, facts: SessionFacts, *, can_send: bool) -> None:
        self._spark = spark
        self._options = options
        self._facts = facts
        self._can_send = can_send
        self._has_executors = has_executors(spark)
        self._tried: frozenset[str] = frozenset()
        self._log = sink_log(__name__, options.transactional_id)

    def begin(self) -> None:
        """Try all of them, before the first batch.

        Raises:
            ConfigurationError: see `check_executors`.
        """
        if not self._has_executors:
            return
        known, tasks = self._facts.executors(), self._facts.tasks_at_once()
        with self._described():
            check_executors(self._spark, self._options, tasks=tasks, can_send=self._can_send)
        self._tried = known or frozenset()

    def look(self) -> None:
        """Try them again where some have joined; at the beginning of each attempt of a batch.

        Raises:
            ConfigurationError: see `check_executors`.
        """
        known = self._facts.executors() if self._has_executors else None
        if known is None or known <= self._tried:
            return
        self._log.info("executors have joined, and are tried: %s", ", ".join(sorted(known - self._tried)))
        if self._try_late():
            self._tried = known

    def naming(self) -> AbstractContextManager[None]:
        """In a job of a batch: name the hosts whose Python could not run its tasks; see `naming_executors`."""
        return naming_executors(self._try_late) if self._has_executors else nullcontext()

    def _try_late(self) -> bool:
        tasks = self._facts.tasks_at_once()
        with self._described():
            return check_late_executors(self._spark, self._options, tasks=tasks, can_send=self._can_send)

    def _described(self) -> AbstractContextManager[None]:
        return self._facts.described(f"{self._options.transactional_id}: check executors")
