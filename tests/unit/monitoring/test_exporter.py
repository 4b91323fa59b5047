"""The exporter: one look at a time, and a scrape that waited takes the result of the one under way."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from spark_2pc_sink.errors import StateStoreError
from spark_2pc_sink.monitoring import exporter
from spark_2pc_sink.monitoring.exporter import SinkCollector
from spark_2pc_sink.recovery.status import StatusReport
from spark_2pc_sink.testing import wait_until
from tests.unit.monitoring.samples import FIGURES, Shown, lines, row, sink

DEADLINE_S = 20


def value(collector: SinkCollector, name: str) -> float:
    (found,) = [sample.value for family in collector.collect() for sample in family.samples if sample.name == name]
    return found


def test_the_history_is_read_for_new_batches_alone() -> None:
    first = StatusReport(sinks=(sink(of=row(decision=41)),))
    watched = Shown(found=first, history=tuple(lines(FIGURES, FIGURES)))
    collector = SinkCollector(watched)
    assert value(collector, "spark_2pc_sink_batches_total") == 0
    object.__setattr__(watched, "found", StatusReport(sinks=(sink(of=row(decision=42)),)))
    assert value(collector, "spark_2pc_sink_batches_total") == 1
    assert value(collector, "spark_2pc_sink_batches_total") == 1


@dataclass(frozen=True, kw_only=True)
class Slow(Shown):
    """A look that ends when the test says so."""

    looks: list[threading.Event] = field(default_factory=list)

    def look(self, transactional_id: str | None = None) -> StatusReport:
        go_on = threading.Event()
        self.looks.append(go_on)
        assert go_on.wait(DEADLINE_S)
        return super().look(transactional_id)


def test_scrapes_that_come_meanwhile_share_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many scrape: they take the result of the look that is under way when they ask."""
    asked: list[float] = []

    def monotonic() -> float:
        asked.append(time.monotonic())
        return asked[-1]

    monkeypatch.setattr(exporter, "time", SimpleNamespace(monotonic=monotonic))
    watched = Slow()
    collector = SinkCollector(watched)
    scrapes = [threading.Thread(target=lambda: list(collector.collect())) for _ in range(8)]
    scrapes[0].start()
    wait_until(lambda: len(watched.looks) == 1, deadline_s=DEADLINE_S, what="the first look")
    for scrape in scrapes[1:]:
        scrape.start()
    # Each scrape asks for the time, and the look once more.
    wait_until(lambda: len(asked) == len(scrapes) + 1, deadline_s=DEADLINE_S, what="all scrapes to have come")
    watched.looks[0].set()
    wait_until(lambda: not any(scrape.is_alive() for scrape in scrapes), deadline_s=DEADLINE_S, what="all scrapes")
    assert len(watched.looks) == 1


def test_a_look_that_fails_fails_its_scrape_alone() -> None:
    broken = Shown()
    collector = SinkCollector(broken)
    problem = StateStoreError(operation="read", detail="permission denied")

    def refuse(transactional_id: str | None = None) -> StatusReport:
        raise problem

    object.__setattr__(broken, "look", refuse)
    with pytest.raises(StateStoreError):
        list(collector.collect())
    object.__delattr__(broken, "look")
    assert value(collector, "spark_2pc_database_up") == 1
