"""The sinks that running queries of this process have called, and their last calls.

No two sinks of a query may share a transactional id: the second would find each batch done by the first, and write
no rows, without an error. Sinks are distinguished by what they write, not by object: a job may create its sink again in
every call, and Spark may pass it a pickled copy.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from sqlalchemy import make_url

from jdbc_state.sink_log import sink_log
from spark_2pc_sink.choices import Facts, HaltCause, HaltError
from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options.settings import options_of, refused, setting_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from spark_2pc_sink.options import SinkOptions
    from spark_2pc_sink.sink.driver.batch_values import RunIds

#: Halt causes that the next batch sees if the function skipped a batch.
_MISSING: Final = frozenset({HaltCause.GAP, HaltCause.NOT_THE_FIRST_BATCH, HaltCause.NOT_HANDED_OVER})


@dataclass
class _Known:
    """First sink seen for an id in a run, and the run's latest call of it.

    Attributes:
        batch_id: batch of that call; None before the first one.
        error: its error's text; None if both sides have the batch.
        refused: its options were refused, so it wrote no data: a user who corrects them in the same process may go on.
    """

    run_id: str
    written: Mapping[str, object]
    batch_id: int | None = None
    error: str | None = None
    refused: bool = False

    def explain(self, halt: HaltError, batch_id: int) -> HaltError:
        """The halt of the next call in the same run, with this call as its reason if it caused it."""
        if self.batch_id is None:
            return halt
        if self.error is not None and batch_id > self.batch_id and halt.cause in _MISSING:
            reason = (
                f"your function continued after an error that the sink raised in batch {self.batch_id}, so Spark has "
                f"recorded that batch as finished: {self.error}. Let the sink's exceptions end the query"
            )
            return replace(halt, cause=HaltCause.NOT_HANDED_OVER, reason=reason, remedies=())
        if self.error is None and batch_id == self.batch_id and halt.cause is HaltCause.REPLAY_DIFFERS:
            reason = (
                f"your function has called the sink twice for batch {batch_id} in this run, the second time with "
                "different rows, none of which were written"
            )
            facts = Facts(batch=batch_id, known=frozenset({"called twice"}))
            return replace(halt, reason=reason, facts=facts, remedies=())
        return halt


class SinksOfRuns:
    """Remembers, for each query and transactional id, the newest run and what its sink writes. Thread-safe."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], _Known] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._known)

    def check_in(self, run: RunIds, options: SinkOptions, *, is_active: Callable[[str], bool]) -> None:
        """Record that a run calls a sink; refuse a different one with this transactional id."""
        written = what_is_written(options)
        identity = (run.query_id, options.transactional_id)
        with self._lock:
            known = self._known.get(identity)
            if known is None:
                self._known = {key: kept for key, kept in self._known.items() if is_active(key[0])}
            elif known.run_id == run.run_id:
                if known.written != written and not known.refused:
                    raise _another(options.transactional_id, known.written, written)
                known.written = written
                return
            self._known[identity] = _Known(run.run_id, written)

    @contextmanager
    def call(self, run: RunIds, transactional_id: str, batch_id: int) -> Iterator[None]:
        """One call of a sink: its outcome is recorded, and the previous call may explain a halt."""
        with self._lock:
            known = self._known.get((run.query_id, transactional_id))
            if known is None or known.run_id != run.run_id:
                # Spark has stopped this run, and a newer one has begun.
                known = _Known(run.run_id, {})
            before = known.batch_id
            went_on = known.error is not None and before != batch_id
        error: str | None = None
        refused = False
        try:
            yield
        except BaseException as failure:
            refused = isinstance(failure, ConfigurationError)
            error = f"{type(failure).__name__}: {failure}"
            explained = known.explain(failure, batch_id) if isinstance(failure, HaltError) else failure
            if explained is failure:
                raise
            raise explained from failure
        finally:
            # A halt does not hide the error that caused it.
            if error is None or not went_on:
                with self._lock:
                    known.refused = refused and (before is None or known.refused)
                    known.batch_id, known.error = batch_id, error
        if went_on:
            sink_log(__name__, transactional_id).error(
                "your function continued after an error of the sink in batch %d: both sides have that batch, but "
                "the next one may be lost; let the sink's exceptions end the query",
                before,
            )


def what_is_written(options: SinkOptions) -> dict[str, object]:
    """The options that tell two sinks apart, without user name and password in the database URL.

    Functions are excluded: a sink created in every call has new ones, and no two of these are equal.
    """
    given = options.given()
    names = [item.name for item in options_of(type(options)) if item.name in given and not setting_of(item).operational]
    written = {name: None if callable(given[name]) else given[name] for name in names}
    address = make_url(options.database)
    return written | {"database": f"{address.host}:{address.port}/{address.database}"}


def _another(transactional_id: str, known: Mapping[str, object], written: Mapping[str, object]) -> ConfigurationError:
    differ = [
        f"{name}={known[name]!r} there, {written[name]!r} here" for name in written if known[name] != written[name]
    ]
    rule = (
        f"this run of the query has called a different sink with this id, with {'; '.join(differ)}; if two sinks "
        "share an id, the second finds every batch done by the first and writes nothing"
    )
    remedy = "give each sink a transactional_id of its own; to change what one sink writes, stop the query and start "
    return refused("transactional_id", transactional_id, rule, f"{remedy}it with the change")


#: The record of this driver process.
sinks_of_runs: Final = SinksOfRuns()
