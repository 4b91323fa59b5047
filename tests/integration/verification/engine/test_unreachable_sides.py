"""A side that is out of reach: from the start an error, half-way a report that relies on nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import make_url

from spark_2pc_sink.errors import DatabaseUnreachableError, KafkaTimeoutError
from spark_2pc_sink.testing.ports import free_port
from tests.conftest import StartKafka
from tests.harness.sql import end_sessions
from tests.integration.state.state_stores import role
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
    assert (report.verdict, report.rows, report.counts) == ("inconclusive", None, {}), str(report)
    assert [part.what for part in report.not_checked] == ["the rest"]
    assert broker.bootstrap in report.not_checked[0].why


def test_the_database_goes_away_half_way(sides: Sides) -> None:
    sides.write(rows(0, 5))

    def cut(what: str, done: int, total: int) -> None:
        del done, total
        if what == "comparing":
            end_sessions(sides.database)

    report = sides.verify(progress=cut)
    assert report.verdict == "inconclusive", str(report)
    assert [part.what for part in report.not_checked] == ["the rest"]


@pytest.fixture
def reader(sides: Sides) -> Iterator[str]:
    """A role that may read the state tables, and nothing else; the URL with which it logs in."""
    sides.write(rows(0, 5))
    with role(sides.database) as (name, url):
        sides.sql(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {name}; REVOKE ALL ON target FROM {name}")
        yield url


def test_a_role_is_told_what_it_lacks(sides: Sides, reader: str) -> None:
    """And not what the next statement finds, nor that the expressions of the caller are wrong."""
    report = sides.verify(database=reader)
    assert report.verdict == "inconclusive", str(report)
    assert "permission denied for table target" in report.not_checked[0].why

    # The role sees a part of the table, whether that looks the same or not.
    user, name = make_url(reader).username, make_url(sides.database).database
    sides.sql(f"GRANT SELECT ON target TO {user}")
    sides.sql("INSERT INTO target VALUES (99, 'a stranger', 1)")
    sides.sql("ALTER TABLE target ENABLE ROW LEVEL SECURITY")
    sides.sql("CREATE POLICY few ON target USING (id < 99)")
    report = sides.verify(database=reader)
    assert [part.what for part in report.not_checked] == ["rows that row-level security hides"], str(report)
    assert f"role {user}" in report.not_checked[0].why
    assert sides.verify().counts == {"missing_in_kafka": 1}

    sides.sql(f'REVOKE TEMPORARY ON DATABASE "{name}" FROM PUBLIC')
    report = sides.verify(database=reader, record_columns="id = key::bigint")
    assert report.verdict == "inconclusive", str(report)
    assert any("grant this role TEMPORARY on it" in part.why for part in report.not_checked), str(report)
