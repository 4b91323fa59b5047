"""Monitoring: the sinks of a database observed from outside, for Prometheus and for a person with a browser.

`Watched` reads both sides and the history, each look with a time limit. ``exporter`` totals the history's lines, and
serves the metrics to Prometheus. ``dashboard`` is a web page with the same content.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from jdbc_state import SqlStateStore
from spark_2pc_sink.options import RecoveryOptions
from spark_2pc_sink.recovery.api import recover, status
from spark_2pc_sink.recovery.report import RecoveryReport, StatusReport


@dataclass(frozen=True, kw_only=True)
class Watched:
    """Both sides, by keywords of `recover` that name them, and the time limit of a look at them."""

    connections: Mapping[str, Any] = field(repr=False)
    timeout_s: int

    def __post_init__(self) -> None:
        self.options()

    def options(self) -> RecoveryOptions:
        """The same, validated; not for a particular sink."""
        return RecoveryOptions.of_every_sink(**self.connections)

    def look(self, transactional_id: str | None = None) -> StatusReport:
        """Both sides of one sink, or of all; parts that cannot be read in time are named in the report."""
        return status(transactional_id=transactional_id, timeout_s=self.timeout_s, **self.connections)

    @contextmanager
    def store(self) -> Iterator[SqlStateStore]:
        limit_s = self.timeout_s
        settings = replace(self.options().store_settings(), connect_timeout_s=limit_s, commit_timeout_ms=limit_s * 1000)
        with closing(SqlStateStore(self.connections["database"], settings)) as store:
            yield store

    def recover(self, transactional_id: str, **choices: Any) -> RecoveryReport:
        return recover(transactional_id=transactional_id, **self.connections, **choices)
