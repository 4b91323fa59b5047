"""A side that is out of reach: from the start an error, half-way a report that relies on nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spark_2pc_sink.errors import DatabaseUnreachableError, KafkaTimeoutError
from spark_2pc_sink.testing.ports import free_port
from tests.conftest import StartKafka
from tests.integration.verification.written_sides import Sides, rows


def test_a_side_that_is_not_there_is_an_error(sides: Sides) -> None:
    sides.write(rows(0, 5))
    nobody = {"bootstrap.servers": f"127.0.0.1:{free_port()}", "max.block.ms": 1_000}
    with pytest.raises(KafkaTimeoutError):
        sides.verify(kafka=nobody)
    with pytest.raises(DatabaseUnreachableError):
        sides.verify(database=f"postgresql://nobody@127.0.0.1:{free_port()}/none")


def test_kafka_goes_away_half_way(
    start_kafka: StartKafka, database: str, topic: Callable[..., str], transactional_id: str
) -> None:
    broker = start_kafka(two_phase_commit=True)
    sides = Sides(broker, database, topic(partitions=2, broker=broker), transactional_id)
    sides.sql("CREATE TABLE target (id bigint, name text, amount numeric(12, 2))")
    sides.write(rows(0, 5))
    sides.sql("DELETE FROM target WHERE id = 3")

    def kill(what: str, done: int, total: int) -> None:
        del what, total
        if done == 0:
            broker.kill()

    kafka = {"bootstrap.servers": broker.bootstrap, "max.block.ms": 2_000}
    report = sides.verify(kafka=kafka, progress=kill)
    assert (report.verdict, report.rows, report.counts) == ("not_checked", None, {}), str(report)
    assert [part.what for part in report.not_checked] == ["the rest"]
    assert broker.bootstrap in report.not_checked[0].why


def test_the_database_goes_away_half_way(sides: Sides) -> None:
    sides.write(rows(0, 5))

    def cut(what: str, done: int, total: int) -> None:
        del done, total
        if what == "comparing":
            sides.sql(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )

    report = sides.verify(progress=cut)
    assert report.verdict == "not_checked", str(report)
    assert [part.what for part in report.not_checked] == ["the rest"]
