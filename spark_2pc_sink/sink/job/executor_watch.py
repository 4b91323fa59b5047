"""The watch over executors: each is tried once, also one that joins while the query runs.

An executor joins by dynamic allocation, or in place of one that was lost. Spark hands it tasks at once, so it is tried
at the beginning of the next attempt of a batch. In an attempt that runs already it is named when a task fails there.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Final

from jdbc_state.sink_log import sink_log
from spark_2pc_sink.sink.job.executor_check import check_executors, naming_executors
from spark_2pc_sink.sink.job.session_facts import has_executors

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from pyspark.sql import SparkSession

    from spark_2pc_sink.sink.job.session_facts import SessionFacts
    from spark_2pc_sink.sink.stream.listener import StreamEndpoint, StreamListener


class TriedExecutors:
    """The executors that have passed the check: another query of the application does not try them again.

    Since then one may have lost its way to the driver. So when a batch has failed for good, all are tried again. One
    object serves one process.
    """

    def __init__(self) -> None:
        self._passed: dict[tuple[str, StreamEndpoint], frozenset[str]] = {}

    def have_passed(self, application: str, endpoint: StreamEndpoint, executors: frozenset[str] | None) -> bool:
        """Are these the executors that have passed?

        Args:
            application: Spark's id of it.
            endpoint: what they have to reach.
            executors: as `SessionFacts.executors` names them; None where that cannot be asked.
        """
        return executors is not None and executors == self._passed.get((application, endpoint))

    def note(self, application: str, endpoint: StreamEndpoint, executors: frozenset[str] | None) -> None:
        """These have passed, and no others count any more."""
        if executors is not None:
            self._passed[application, endpoint] = executors

    def forget(self) -> None:
        """A batch has failed: try all again."""
        self._passed.clear()


#: Of this process, whose queries share the executors of their application.
tried_executors: Final = TriedExecutors()


class ExecutorWatch:
    """Tries executors for one run of a query; does nothing where tasks run in the driver's process.

    Args:
        spark: the session of the first batch.
        transactional_id: of the sink.
        facts: of the session.
        listener: what executors have to reach.
    """

    def __init__(
        self, spark: SparkSession, transactional_id: str, facts: SessionFacts, listener: StreamListener
    ) -> None:
        self._spark = spark
        self._transactional_id = transactional_id
        self._facts = facts
        self._listener = listener
        self._has_executors = has_executors(spark)
        self._tried: frozenset[str] = frozenset()
        self._log = sink_log(__name__, transactional_id)

    def begin(self) -> None:
        """Try all of them, before the first batch; unless the same ones have passed for the same before.

        Raises:
            ConfigurationError: see `check_executors`.
        """
        if not self._has_executors:
            return
        known, application = self._facts.executors(), self._facts.application()
        if not tried_executors.have_passed(application, self._listener.endpoint, known):
            self._check()
            tried_executors.note(application, self._listener.endpoint, known)
        self._tried = known or frozenset()

    @contextmanager
    def begun(self) -> Iterator[None]:
        """Begin while a block asks on the driver: neither changes anything, and neither waits for the other.

        Raises:
            ConfigurationError: see `begin`. An error of the block comes first, once the job of `begin` has ended.
        """
        if not self._has_executors:
            yield
            return
        # In the log the thread works for this sink, too.
        begin = partial(copy_context().run, self.begin)
        with ThreadPoolExecutor(1, "spark_2pc_sink executors") as threads:
            begun = threads.submit(self._facts.inheriting(begin))
            yield
            begun.result()

    def look(self) -> None:
        """Try them again where some have joined; at the beginning of each attempt of a batch.

        Raises:
            ConfigurationError: see `check_executors`.
        """
        known = self._facts.executors() if self._has_executors else None
        if known is None or known <= self._tried:
            return
        self._log.info("new executors joined; checking them: %s", ", ".join(sorted(known - self._tried)))
        self._check()
        self._tried = known

    def naming(self) -> AbstractContextManager[None]:
        """In a job of a batch: name the hosts whose Python could not run its tasks; see `naming_executors`."""
        return naming_executors(self._check) if self._has_executors else nullcontext()

    def _check(self) -> None:
        tasks = self._facts.tasks_at_once()
        with self._facts.described(f"{self._transactional_id}: check executors"):
            check_executors(self._spark, self._listener, self._transactional_id, tasks=tasks)
