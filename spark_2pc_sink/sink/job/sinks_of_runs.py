"""The sinks that running queries of this process have called; no two of a query share a transactional id.

The second would find each batch done by the first, and write nothing, without an error. What tells two sinks apart is
what they write, not the object: a job may build its sink anew in every call, and Spark may hand it a pickled copy.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final

from sqlalchemy import make_url

from spark_2pc_sink.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from spark_2pc_sink.options import SinkOptions
    from spark_2pc_sink.sink.job.query_checks import RunIds

#: Options that say how a sink works, and not what it writes. The Kafka cluster is that of the state row, or refused.
_HOW: Final = frozenset(
    {
        *("accept_replay", "adopt", "batch_attempts_max", "claim_deadline_ms", "claim_lock_timeout_ms"),
        *("commit_timeout_ms", "connect_deadline_ms", "connect_timeout_s", "create_table", "decision_margin_ms"),
        *("history_batches", "history_table", "idle_in_transaction_timeout_ms", "inline_copy_bytes_max", "kafka"),
        *("local_files", "lock_timeout_ms", "on_batch", "reason", "settle_deadline_ms", "staging_schema"),
        "statement_timeout_ms",
    }
)


@dataclass(frozen=True)
class _Known:
    """The first sink of an id that a run has called."""

    run_id: str
    written: Mapping[str, object]


class SinksOfRuns:
    """Remembers, for each query and transactional id, the newest run and what its sink writes. Threads may share it."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], _Known] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._known)

    def check_in(self, run: RunIds, options: SinkOptions, *, is_active: Callable[[str], bool]) -> None:
        """Note that a run calls a sink.

        Args:
            run: of the query.
            options: of the sink.
            is_active: whether the query of an id still runs; what is known of others is forgotten.

        Raises:
            ConfigurationError: the run has called a sink of this transactional id that writes something else.
        """
        written = what_is_written(options)
        identity = (run.query_id, options.transactional_id)
        with self._lock:
            known = self._known.get(identity)
            if known is None:
                self._known = {key: kept for key, kept in self._known.items() if is_active(key[0])}
            elif known.run_id == run.run_id and known.written != written:
                raise _another(options.transactional_id, known.written, written)
            self._known[identity] = _Known(run.run_id, written)


def what_is_written(options: SinkOptions) -> dict[str, object]:
    """The options that tell two sinks apart, without a name or a password in the database's address."""
    written = {item.name: getattr(options, item.name) for item in fields(options) if item.name not in _HOW}
    address = make_url(options.database)
    return written | {"database": f"{address.host}:{address.port}/{address.database}"}


def _another(transactional_id: str, known: Mapping[str, object], written: Mapping[str, object]) -> ConfigurationError:
    differ = [
        f"{name}={known[name]!r} there, {written[name]!r} here" for name in written if known[name] != written[name]
    ]
    return ConfigurationError(
        option="transactional_id",
        value=transactional_id,
        rule=f"this run of the query has called another sink of this id, with {'; '.join(differ)}; of two sinks that "
        "share an id the second finds every batch done by the first, and writes nothing",
        remedy="give each sink a transactional_id of its own; to change what one sink writes, stop the query and start "
        "it with the change",
    )


#: Of this driver process.
sinks_of_runs: Final = SinksOfRuns()
