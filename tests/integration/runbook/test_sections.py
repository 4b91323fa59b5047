"""RUNBOOK.md on real servers: sections where no job has died, and the other ways to end an incident.

What a dead job leaves behind is made in ``tests/integration/incidents``.
"""

from __future__ import annotations

import io
import re
import shlex
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import make_url

from recovery_runbook import run
from spark_2pc_sink import cli
from spark_2pc_sink.ids import ProducerIdAndEpoch, TopicPartition
from spark_2pc_sink.runbook import sides
from spark_2pc_sink.testing import free_port, read_topic
from tests.conftest import MakeTopic, StartKafka
from tests.harness.page_blocks import Way, ways
from tests.harness.providers import Broker
from tests.harness.written_pair import PARTITIONS, WrittenPair, rows_of
from tests.integration.incidents.conftest import MakeIncident
from tests.integration.transactions_tool.hanging import VERIFIES_NOTHING, open_rows, produce_raw, writer_on

WAYS = {way.incident: way for way in ways() if not way.name}

#: For servers that answer, on a machine that is busy with other things; and for one that is not there.
ANSWERS_S = 120
OUT_OF_REACH_S = 3
#: The type of the fixture follow.
Follow = Callable[..., tuple[int, str]]


@pytest.fixture
def follow(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Follow:
    """Runs the command of a section of RUNBOOK.md in this process, with its answers: exit code and output."""

    def call(
        incident: str, *, bootstrap: str, database: str, transactional_id: str, timeout_s: int = ANSWERS_S
    ) -> tuple[int, str]:
        way = WAYS[incident]
        values = {"ID": transactional_id, "…": f"--bootstrap-server {bootstrap} --database {database}"}
        monkeypatch.setattr("sys.stdin", io.StringIO(way.stdin(values)))
        capsys.readouterr()
        (command,) = way.commands
        code = cli.main([*way.words(command, values), "--timeout", str(timeout_s)])
        said = capsys.readouterr().out
        assert f"({incident})" in said
        for question, answer in way.answers:
            assert any(question in line and line.endswith(answer) for line in said.splitlines()), said
        return code, said

    return call


def pair_on(broker: Broker, database: str, topic: MakeTopic, transactional_id: str) -> WrittenPair:
    return WrittenPair(broker, database, topic(partitions=PARTITIONS, broker=broker), transactional_id, upsert=False)


@pytest.fixture
def pair(kafka: Broker, database: str, topic: MakeTopic, transactional_id: str) -> Iterator[WrittenPair]:
    """A sink that is well, with two batches on both sides."""
    with pair_on(kafka, database, topic, transactional_id) as made:
        made.write(rows_of(0), rows_of(1))
        yield made


def sides_of(pair: WrittenPair, **other: str) -> dict[str, Any]:
    return {
        "bootstrap": pair.broker.bootstrap,
        "database": pair.database,
        "transactional_id": pair.transactional_id,
        **other,
    }


def test_no_sink_has_this_name(pair: WrittenPair, follow: Follow) -> None:
    code, _ = follow("not_known", **sides_of(pair, transactional_id=f"{pair.transactional_id}-misspelt"))
    assert code == 4


def test_kafka_is_out_of_reach(pair: WrittenPair, follow: Follow) -> None:
    nowhere = f"127.0.0.1:{free_port()}"
    code, said = follow("kafka_out_of_reach", **sides_of(pair, bootstrap=nowhere), timeout_s=OUT_OF_REACH_S)
    assert code == 1
    assert "batch 1" in said  # the database is shown all the same


def test_the_database_is_out_of_reach(pair: WrittenPair, follow: Follow) -> None:
    nowhere = f"postgresql://nobody@127.0.0.1:{free_port()}/none"
    code, _ = follow("database_out_of_reach", **sides_of(pair, database=nowhere), timeout_s=OUT_OF_REACH_S)
    assert code == 1


def test_readers_wait_for_another_producer(pair: WrittenPair, follow: Follow, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is named, and left to its owner; when that has ended it, nothing is wrong."""
    monkeypatch.setattr(sides, "OPEN_MS_MIN", 0)
    with writer_on(pair.broker, "the-other", pair.topic, two_phase_commit=False) as other:
        open_rows(other, "a")
        code, said = follow("readers_blocked", **sides_of(pair))
        assert code == 3
        assert "the-other" in said
        other.abort_transaction()
    code, _ = follow("nothing_wrong", **sides_of(pair))
    assert code == 0


def test_the_command_that_ends_another_producer_is_printed_and_can_be_pasted(
    pair: WrittenPair, follow: Follow, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where its owner is gone for good."""
    monkeypatch.setattr(sides, "OPEN_MS_MIN", 0)
    with writer_on(pair.broker, f"gone {pair.topic}", pair.topic, two_phase_commit=False) as gone:
        open_rows(gone, "a")
        monkeypatch.setattr("sys.stdin", io.StringIO("force_terminate\n"))
        place = ["--bootstrap-server", pair.broker.bootstrap, "--database", pair.database]
        assert cli.main(["runbook", *place, "--transactional-id", pair.transactional_id]) == 3
        [command] = re.findall(r"^1\. spark-2pc (.*)$", capsys.readouterr().out, re.MULTILINE)
        monkeypatch.setenv("PGPASSWORD", str(make_url(pair.database).password))
        # A terminal is asked for the reason.
        assert cli.main([*shlex.split(command), "--reason", "tested"]) == 0
    code, said = follow("nothing_wrong", **sides_of(pair))
    assert code == 0
    [command] = re.findall(r"^ *spark-2pc (.*) --cause '", said, re.MULTILINE)
    capsys.readouterr()
    assert cli.main([*shlex.split(command), "--cause", "gap"]) == 3
    assert "(gap)" in capsys.readouterr().out


def test_a_transaction_that_hangs_is_aborted(
    start_kafka: StartKafka, database: str, topic: MakeTopic, transactional_id: str, follow: Follow
) -> None:
    """Readers go on behind it, and the sink's records are as they were."""
    broker = start_kafka(two_phase_commit=True, properties=VERIFIES_NOTHING)
    with pair_on(broker, database, topic, transactional_id) as pair:
        pair.write(rows_of(0))
        before = len(read_topic(broker.bootstrap, pair.topic))
        produce_raw(broker.bootstrap, TopicPartition(pair.topic, 0), ProducerIdAndEpoch(7_777, 0))
        pair.write(rows_of(1))
        assert len(read_topic(broker.bootstrap, pair.topic)) < before * 2
        code, said = follow("hanging_transaction", **sides_of(pair))
        assert code == 0
        assert "aborted the transaction at offset" in said
        assert len(read_topic(broker.bootstrap, pair.topic)) == before * 2


OTHER = [way for way in ways() if way.name]
#: Exit codes of the commands, in their order. The records of these jobs are no JSON, so `verify` reads no rows in them.
CODES = {"yes": [0], "by_hand": [3, 0, 5, 0]}


@pytest.mark.thorough
@pytest.mark.parametrize("way", OTHER, ids=lambda way: f"{way.incident}-{way.name}")
def test_another_way_ends_it_too(way: Way, make_incident: MakeIncident) -> None:
    incident = make_incident(way.incident, "reference")
    job = incident.job
    values = {
        "ID": job.transactional_id,
        "URL": job.database,
        "…": f"--bootstrap-server {job.broker.bootstrap} --database {job.database}",
    }
    assert [cli.main(way.words(command, values)) for command in way.commands] == CODES[way.name]
    incident.start_again({})
    incident.check_end()


@pytest.mark.slow
def test_one_round_settles_what_a_dead_driver_has_left(
    make_incident: MakeIncident, capsys: pytest.CaptureFixture[str]
) -> None:
    """The example for one's own automation; the next round finds nothing to do."""
    incident = make_incident("in_doubt", "reference")
    kafka: dict[str, str | int] = {"bootstrap.servers": incident.job.broker.bootstrap}
    assert run(kafka, incident.job.database) == 0
    assert "settled now" in capsys.readouterr().out
    assert run(kafka, incident.job.database) == 0
    assert "settled now" not in capsys.readouterr().out
    incident.start_again({})
    incident.check_end()
