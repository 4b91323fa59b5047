"""Each command that ``spark-2pc transactions`` prints as the next one is pasted, in a situation that prints it."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

import pytest
from sqlalchemy import make_url

from spark_2pc_sink import cli
from spark_2pc_sink.ids import PreparedTxnState, TopicPartition
from spark_2pc_sink.transactions import TransactionTool
from tests.conftest import or_skip
from tests.harness.driver_job import Job
from tests.harness.providers import Broker, BrokerRequest, Provider
from tests.integration.faults.conftest import MakeJob, make_job, nursery
from tests.integration.transactions_tool.hanging import VERIFIES_NOTHING, open_rows, produce_raw, writer_on

__all__ = ["make_job", "nursery"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
BATCH: Final = 1


@dataclass(frozen=True)
class Situation:
    """What a command prints its next ones for.

    Attributes:
        make: makes it; an id, and the words of the command behind the connection.
        commands: how many it prints to paste.
        code: its exit code.
        names_database: the command is told the database.
    """

    make: Callable[[Job, ExitStack], tuple[str, list[str]]]
    commands: int
    code: int = 0
    names_database: bool = True


def of_a_sink(job: Job, _: ExitStack) -> tuple[str, list[str]]:
    job.kill_at("step:PRODUCE", batch=BATCH)
    return job.transactional_id, ["describe", "--transactional-id", job.transactional_id]


def of_another(job: Job, opened: ExitStack) -> tuple[str, list[str]]:
    """A producer with two-phase commit that is no sink."""
    job.run()
    name = f"not of a sink {job.topic}"
    open_rows(opened.enter_context(writer_on(job.broker, name, job.topic)), "a")
    return name, ["describe", "--transactional-id", name]


def terminated(job: Job, opened: ExitStack) -> tuple[str, list[str]]:
    name, _ = of_a_sink(job, opened)
    return name, ["force-terminate", "--transactional-id", name, "--reason", "tested"]


def hanging(job: Job, _: ExitStack) -> tuple[str, list[str]]:
    """By records of the sink's producer that came after the end of its transaction."""
    job.run()
    pair = PreparedTxnState(job.state("prepared_transaction_state")[0]).producer
    assert pair is not None
    produce_raw(job.broker.bootstrap, TopicPartition(job.topic, 0), pair.bumped())
    return job.transactional_id, ["find-hanging", "--topic", job.topic]


SITUATIONS: Final = {
    "a sink's, with the database": Situation(of_a_sink, 2),
    "another's, without the database": Situation(of_another, 2, names_database=False),
    "terminated": Situation(terminated, 1),
    "a sink's that hangs": Situation(hanging, 3, code=3),
}


@pytest.fixture(scope="module")
def broker(pytestconfig: pytest.Config, provider: Provider) -> Iterator[Broker]:
    """A broker that grants two-phase commit and verifies no records."""
    started = or_skip(pytestconfig, lambda: provider.start_broker(BrokerRequest(2, True, VERIFIES_NOTHING)))
    yield started
    started.close()


def cases() -> Iterator[tuple[str, int]]:
    for name, situation in SITUATIONS.items():
        yield from ((name, number) for number in range(situation.commands))


@pytest.mark.parametrize(("name", "number"), list(cases()))
def test_a_printed_command_does_what_it_says(
    name: str,
    number: int,
    broker: Broker,
    make_job: MakeJob,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """B16, B28: as it stands, but for the URL where no database was named. No other one is printed."""
    situation = SITUATIONS[name]
    job = make_job(broker)
    with ExitStack() as opened:
        owner, words = situation.make(job, opened)
        sides = ["--bootstrap-server", job.broker.bootstrap]
        sides += ["--database", job.database] if situation.names_database else []
        capsys.readouterr()
        assert cli.main(["transactions", *words, *sides]) == situation.code
        printed = [line for line in capsys.readouterr().err.splitlines() if line.startswith("  spark-2pc ")]
        assert len(printed) == situation.commands, printed
        command = shlex.split(printed[number], comments=True)[1:]
        assert ("URL" in command) is (command[0] in {"recover", "status"} and not situation.names_database)
        if "force-terminate" in command and "--database" in command:
            command += ["--reason", "tested"]  # which a terminal is asked for
        monkeypatch.setenv("PGPASSWORD", str(make_url(job.database).password))
        code = cli.main([job.database if word == "URL" else word for word in command])
        # What is printed for a sink leaves another owner's transaction to a person.
        only_looks = command[0] == "status" or (command[0] == "recover" and owner != job.transactional_id)
        assert code in ({0, 3} if only_looks else {0}), capsys.readouterr()
    with TransactionTool(kafka={"bootstrap.servers": job.broker.bootstrap}) as tool:
        if command[:2] == ["transactions", "abort"]:
            assert tool.find_hanging(topic=job.topic) == ()
        elif not only_looks:
            assert tool.describe(owner).state != "Ongoing"
