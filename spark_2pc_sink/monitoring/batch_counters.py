"""Batch counters: sums over the lines of the history, each line counted once.

The history is trimmed, so a sum over it would shrink, which Prometheus would take for a restart of the counter.
Counting therefore begins with zero at the newest line of the first look: a restart of the exporter counts no batch
twice, and omits batches written while it was down.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from jdbc_state import DECIDED, HistoryLine, StateRow, history

#: History events that add a batch; a resend adds none, as its batch already has a line.
_BATCH_EVENTS: Final = frozenset({history.DECIDED, history.EMPTY, history.ACCEPTED})


@dataclass
class Sum:
    """Number and sum of measurements."""

    count: int = 0
    total: float = 0.0

    def add(self, value: float) -> None:
        """Add one measurement."""
        self.count += 1
        self.total += value


@dataclass
class SinkCounts:
    """Totals of a sink since the first look at it.

    Attributes:
        batches: batches that both sides have, including empty ones.
        resends: batches that were resent because Kafka had lost them.
        rows: rows of those batches in the table.
        records: records of those batches in Kafka.
        record_bytes: compressed bytes of their record batches, as far as the history has them.
        bad_rows: rows sent to the dead letters instead, as far as the history has them.
        seconds: time from Spark's call until Kafka's commit, as far as the history has it.
        steps: the same by the names of `spark_2pc_sink.recipe.steps.Step` in lower case.
        source_lag, event_delay_s: values of the newest batch, see `BatchReport`; None if its line has none.
    """

    batches: int = 0
    resends: int = 0
    rows: int = 0
    records: int = 0
    record_bytes: int = 0
    bad_rows: int = 0
    seconds: Sum = field(default_factory=Sum)
    steps: dict[str, Sum] = field(default_factory=lambda: defaultdict(Sum))
    source_lag: float | None = None
    event_delay_s: float | None = None

    def add(self, line: HistoryLine) -> None:
        """Count one line."""
        row = line.row
        if line.event in _BATCH_EVENTS:
            self.batches += 1
            self.rows += row.row_count
            self.records += row.record_count
        elif line.event == history.RESENT:
            self.resends += 1
        figures = line.figures
        self.record_bytes += int(figures.get("record_bytes", 0))
        self.bad_rows += int(figures.get("bad_rows", 0))
        if "seconds" in figures:
            self.seconds.add(float(figures["seconds"]))
        for step, seconds in figures.get("step_seconds", {}).items():
            self.steps[step].add(float(seconds))
        self.source_lag, self.event_delay_s = figures.get("source_lag"), figures.get("event_delay_s")


class BatchCounters:
    """The counts of all sinks, kept from one look to the next."""

    def __init__(self) -> None:
        self._counts: dict[str, SinkCounts] = {}
        # Number of each sink's newest counted line.
        self._counted: dict[str, int] = {}

    def lines_wanted(self, row: StateRow) -> int:
        """How many of the sink's newest lines must be read, 0 for none.

        The line of a batch that Kafka lacks is counted later, when it is complete.
        """
        settled = row.decision - (row.status == DECIDED)
        counted = self._counted.setdefault(row.transactional_id, settled)
        self._counts.setdefault(row.transactional_id, SinkCounts())
        if row.decision < counted:
            # The row and its history are gone, and the sink has started over.
            self._counted[row.transactional_id] = counted = 0
        return row.decision - counted if settled > counted else 0

    def count(self, transactional_id: str, lines: Iterable[HistoryLine]) -> None:
        """Count those of a sink's newest lines that are new and settled."""
        counted = self._counted[transactional_id]
        new = [line for line in lines if line.row.decision > counted and line.row.status != DECIDED]
        for line in sorted(new, key=lambda line: line.row.decision):
            self._counts[transactional_id].add(line)
        self._counted[transactional_id] = max([counted, *(line.row.decision for line in new)])

    @property
    def by_sink(self) -> Mapping[str, SinkCounts]:
        """The counts by transactional id, of every sink that `lines_wanted` was asked about."""
        return self._counts
