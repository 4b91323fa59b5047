"""The end of a job: wait for a query, stop it between two batches on SIGTERM, and return an exit code."""

from __future__ import annotations

import re
import signal
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from jdbc_state.sink_log import sink_log
from spark_2pc_sink import errors

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

_log = sink_log(__name__)
#: The query has ended by itself; with ``availableNow``, all available input is on both sides.
EXIT_DONE: Final = 0
#: A restart may succeed: a server was unreachable, a batch failed, or a newer driver has taken over.
EXIT_RETRY: Final = 1
#: An option or a row is refused, and will be refused again on each start.
EXIT_REFUSED: Final = 2
#: Requires an operator's decision; see RUNBOOK.md.
EXIT_DECISION: Final = 3
#: Stopped by SIGTERM: 128 plus the signal number, as shells report it.
EXIT_STOPPED: Final = 128 + signal.SIGTERM
#: An error of this package in the text of Spark's error, which contains Python's traceback.
_ERROR: Final = re.compile(r"^\s*spark_2pc_sink\.errors\.(\w+): ", re.MULTILINE)
#: Polling intervals for SIGTERM and for the end of a batch.
_WAIT_S: Final = 1
_POLL_S: Final = 0.05
#: Part of the grace period reserved for `StreamingQuery.stop` and the end of the process.
_STOP_SHARE: Final = 0.4


def run_until_stopped(query: StreamingQuery, *, grace_s: float = 25.0) -> int:
    """Wait for a query to end, and return an exit code: ``raise SystemExit(run_until_stopped(query))``.

    SIGTERM stops the query: the batch in progress may finish within ``grace_s``. Otherwise the next start completes or
    repeats it. The log says which. Call it in the main thread, the only one that may handle signals.

    Args:
        query: a started query.
        grace_s: seconds from SIGTERM to the return; less than the platform's delay before SIGKILL.

    Returns:
        0 for a query that has ended by itself, 1 if a restart may succeed, 2 if an option or a row is refused, 3 if an
        operator has to decide, 143 after SIGTERM.
    """
    from pyspark.errors import StreamingQueryException  # noqa: PLC0415 - recovery imports this package without Spark

    told = threading.Event()
    before = signal.signal(signal.SIGTERM, lambda *_: told.set())
    try:
        while not told.is_set():
            if query.awaitTermination(_WAIT_S):
                return EXIT_DONE
        return _drain(query, grace_s)
    except StreamingQueryException as error:
        code = exit_code_of(str(error))
        _log.error("the job ends with exit code %d: %s", code, error)
        return code
    finally:
        signal.signal(signal.SIGTERM, before)


def exit_code_of(text: str) -> int:
    """The exit code for the error text of a query, which includes a Python traceback."""
    names = _ERROR.findall(text)
    found: Any = getattr(errors, names[-1], Exception) if names else Exception
    if issubclass(found, (errors.HaltError, errors.ClaimRefusedError)):
        return EXIT_DECISION
    return EXIT_REFUSED if issubclass(found, (errors.ConfigurationError, errors.DataError)) else EXIT_RETRY


def _drain(query: StreamingQuery, grace_s: float) -> int:
    """Let the batch in progress finish, stop the query, and log the outcome of the batch."""
    told_s, batch_s, first = time.monotonic(), (1 - _STOP_SHARE) * grace_s, _batch_of(query)
    _log.warning("SIGTERM: stopping the query after its current batch, within %.0f s", batch_s)
    while not (ended := _batch_of(query) != first or not query.status["isTriggerActive"]):
        if time.monotonic() >= told_s + batch_s:
            break
        time.sleep(_POLL_S)
    stopping = threading.Thread(target=query.stop, name="stop the query", daemon=True)
    stopping.start()
    stopping.join(max(0.0, told_s + grace_s - time.monotonic()))
    outcome = "finished. If another one had begun, the" if ended else "did not finish. The"
    _log.warning("stopped: the current batch %s next start completes or repeats it", outcome)
    return EXIT_STOPPED


def _batch_of(query: StreamingQuery) -> int | None:
    """The last batch that Spark has recorded as finished in this run."""
    progress = query.lastProgress
    return None if progress is None else progress["batchId"]
