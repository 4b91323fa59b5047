"""Metric families: every figure has its name, and a series stands for something that is there."""

from __future__ import annotations

import re
from collections.abc import Iterable

from prometheus_client.core import Metric

from spark_2pc_sink.monitoring.exporter import SinkCounts, families
from spark_2pc_sink.recovery.report import RecoveryReport
from spark_2pc_sink.recovery.status import StatusReport, UnreadableSink
from tests.unit.monitoring.samples import EVERYTHING, UNKNOWN, in_doubt, lines, owed, row, sink


def values(found: Iterable[Metric]) -> dict[str, float]:
    """Values by name and labels, as Prometheus writes them."""
    return {
        f"{sample.name}{{{','.join(f'{name}={value}' for name, value in sorted(sample.labels.items()))}}}": sample.value
        for family in found
        for sample in family.samples
    }


def of(*sinks: RecoveryReport, **changes: object) -> dict[str, float]:
    report = StatusReport(sinks=sinks, **changes)  # type: ignore[arg-type]
    return values(families(report, {}, took_s=0.5))


def one(found: dict[str, float], name: str, **labels: str) -> float | None:
    inside = ",".join(f"{key}={value}" for key, value in sorted({"transactional_id": "orders", **labels}.items()))
    return found.get(f"spark_2pc_sink_{name}{{{inside}}}")


def test_a_sink_that_is_well_has_zeros() -> None:
    found = of(sink())
    assert [one(found, name) for name in ("in_doubt_seconds", "prepared_seconds", "owed", "driver_up")] == [0, 0, 0, 1]
    assert one(found, "claims_total") == 7
    assert one(found, "last_decision_timestamp_seconds") == row().decided_at.timestamp()  # type: ignore[union-attr]
    assert not any("needs_decision" in name for name in found)


def test_what_is_in_doubt_prepared_or_owed_is_told_apart() -> None:
    assert (one(of(in_doubt()), "in_doubt_seconds"), one(of(in_doubt()), "owed")) == (120, 0)
    assert (one(of(owed()), "in_doubt_seconds"), one(of(owed()), "owed")) == (120, 1)
    assert one(of(sink(prepared_s=33.0, settled=False)), "prepared_seconds") == 33


def test_what_is_not_known_has_no_series() -> None:
    """A sink behind a pooler has no driver that could be seen; a new one has no decision."""
    found = of(sink(driver=UNKNOWN), sink("new", row("new", batch=None, decided_at=None), driver=None))
    assert not any("driver_up" in name for name in found)
    assert one(found, "last_decision_timestamp_seconds", transactional_id="new") is None


def test_sinks_elsewhere_and_unknown_ids_are_only_counted() -> None:
    """Else they would be in doubt for ever, by the eyes of the wrong cluster."""
    found = of(sink("archive", elsewhere=True, settled=False), sink("nobody", known=False, row=None, before=None))
    assert not any("transactional_id" in name for name in found)
    assert (found["spark_2pc_sinks{}"], found["spark_2pc_sinks_elsewhere{}"]) == (2, 1)


def test_both_sides_say_whether_they_answered() -> None:
    found = of(sink())
    assert (found["spark_2pc_database_up{}"], found["spark_2pc_kafka_up{}"]) == (1, 1)
    found = of(sink(), kafka_problem="no broker answered")
    assert (found["spark_2pc_database_up{}"], found["spark_2pc_kafka_up{}"]) == (1, 0)
    found = of(database_problem="no connection", unreadable=(UnreadableSink("x", "kafka", "y"),))
    assert (found["spark_2pc_database_up{}"], found["spark_2pc_kafka_up{}"]) == (0, 1)
    assert "spark_2pc_sinks_unreadable{}" not in found, "nobody has looked"
    assert found["spark_2pc_scrape_duration_seconds{}"] == 0.5


def test_the_history_s_sums_are_counters_and_summaries() -> None:
    counts = SinkCounts()
    counts.add(lines({"record_bytes": 812, "bad_rows": 3, "seconds": 1.5, "step_seconds": {"produce": 0.9}})[0])
    found = values(families(StatusReport(sinks=(sink(),)), {"orders": counts, "gone": SinkCounts()}, took_s=0))
    names = ("batches_total", "resends_total", "rows_total", "records_total", "record_bytes_total", "bad_rows_total")
    assert [one(found, name) for name in names] == [1, 0, 1_200, 1_100, 812, 3]
    assert (one(found, "batch_seconds_count"), one(found, "batch_seconds_sum")) == (1, 1.5)
    assert one(found, "batch_step_seconds_sum", step="produce") == 0.9
    assert not any("gone" in name for name in found), "a sink that is gone has no series any more"


def test_names_follow_the_conventions_and_labels_are_few() -> None:
    """Base units, lower case, ``_total`` for counters; no label whose values nobody bounds but the sink's."""
    counts = {each.transactional_id: SinkCounts() for each in EVERYTHING.sinks}
    for family in families(EVERYTHING, counts, took_s=0):
        assert re.fullmatch(r"spark_2pc_[a-z_]+", family.name)
        assert not re.search(r"_(ms|millis|minutes|mb)(_|$)", family.name)
        assert family.documentation.endswith(".")
        for sample in family.samples:
            assert sample.name.endswith("_total") == (family.type == "counter")
            assert set(sample.labels) <= {"transactional_id", "cause", "step"}
