"""A streaming query while it runs: what others see of it, and what they do to its table between two batches."""

from __future__ import annotations

import pytest

from spark_2pc_sink import recover
from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.testing import wait_until
from tests.harness.streams import FileStream
from tests.integration.postgres import database_tables
from tests.integration.sink.targets import Target, rows_of


def test_a_query_is_seen_while_it_runs(stream: FileStream, target: Target) -> None:
    """D10: and no longer, although its process goes on; then nobody has to say take_over."""
    sides = target.sides
    seen = []

    def look(_: object) -> None:
        report = recover(dry_run=True, **sides)
        seen.append(report.driver is not None and report.driver.alive)

    stream.add(rows_of(0))
    stream.add(rows_of(1))
    stream.run(target.sink(key="id", on_batch=look))
    assert seen == [True, True]

    def gone() -> bool:
        driver = recover(dry_run=True, **sides).driver
        return driver is not None and driver.alive is False

    wait_until(gone, deadline_s=30, what="the driver to be gone")
    assert recover(**sides).settled
    assert target.rows("generation", "kafka_transaction_state") == [(2,)]


VIEW = (
    "ALTER TABLE target RENAME TO old",
    "CREATE VIEW target AS SELECT * FROM old",
    "CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$",
    "CREATE TRIGGER instead INSTEAD OF INSERT ON target FOR EACH ROW EXECUTE FUNCTION nothing()",
)


def test_a_table_that_is_none_any_more_ends_the_query(stream: FileStream, target: Target) -> None:
    """C16: in the batch after it, which neither side has then."""
    stream.add(rows_of(0))
    stream.add(rows_of(1))
    sink = target.sink(key="id", on_batch=lambda _: database_tables.run(target.database, *VIEW))
    with pytest.raises(ConfigurationError, match="it is a view"):
        stream.run(sink)
    assert len(target.rows(table="old")) == len(rows_of(0))
    assert len(target.records()) == len(rows_of(0))
