"""The tool for transactions on real Kafka, and the commands that it prints as the next ones. Covers B16, B17, B28.

The broker does not verify that a partition is part of the transaction (``transaction.partition.verification.enable``,
off as it was before Kafka 3.6), so a raw Produce leaves a hanging transaction as KAFKA-9144 did.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

import pytest
from sqlalchemy import make_url

from spark_2pc_sink import cli
from spark_2pc_sink.errors import AbortRefusedError, FencedError
from spark_2pc_sink.ids import TIMEOUT_NEVER_MS, PreparedTxnState, ProducerIdAndEpoch, TopicPartition
from spark_2pc_sink.kafka.cluster import Cluster
from spark_2pc_sink.kafka.transaction_queries import TransactionQueries
from spark_2pc_sink.producer import TransactionalWriter
from spark_2pc_sink.testing import read_topic, wait_until
from spark_2pc_sink.transactions import ListFilter, TransactionTool
from tests import conftest
from tests.conftest import MakeTopic, or_skip
from tests.harness.driver_job import Job
from tests.harness.json_contract import read_output
from tests.harness.providers import Broker, BrokerRequest, Provider
from tests.integration.faults.conftest import MakeJob, make_job, nursery
from tests.integration.transactions_tool.hanging import HOUR_MS, VERIFIES_NOTHING, open_rows, produce_raw, writer_on
from tests.integration.writer.writers import options_for

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module", params=[pytest.param(0, id="tv0", marks=pytest.mark.slow), pytest.param(2, id="tv2")])
def broker(request: pytest.FixtureRequest, brokers: Any, provider: Provider) -> Iterator[Broker]:
    """A broker that grants two-phase commit and verifies nothing."""
    wanted = BrokerRequest(request.param, True, VERIFIES_NOTHING)
    started = conftest.or_skip(request.config, lambda: provider.start_broker(wanted))
    yield started
    started.close()


@pytest.fixture
def tool(broker: Broker) -> Iterator[TransactionTool]:
    with TransactionTool(kafka={"bootstrap.servers": broker.bootstrap}) as made:
        yield made


@pytest.fixture
def run(broker: Broker, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs ``spark-2pc transactions`` in this process: exit code, output, errors."""

    def call(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = cli.main(["transactions", "--bootstrap-server", broker.bootstrap, *words])
        return code, *capsys.readouterr()

    return call


def commit_rows(writer: TransactionalWriter, *values: str, partition: int = 0) -> None:
    open_rows(writer, *values, partition=partition)
    writer.commit_transaction()


def committed(broker: Broker, topic: str) -> list[str]:
    return sorted((record.value or b"").decode() for record in read_topic(broker.bootstrap, topic))


def wait_for(broker: Broker, topic: str, *values: str) -> None:
    wait_until(lambda: committed(broker, topic) == sorted(values), what=f"{values} in {topic}")


def pair_of(writer: TransactionalWriter) -> ProducerIdAndEpoch:
    assert writer.producer is not None
    return writer.producer


# --- transactions that hang --------------------------------------------------------------------------------------


def test_a_transaction_that_nobody_knows_is_found_and_aborted(
    broker: Broker, topic: MakeTopic, transactional_id: str, run: Run
) -> None:
    """B16: readers of committed data stand still before it, and go on after the abort."""
    name = topic(broker=broker, partitions=2)
    produce_raw(broker.bootstrap, TopicPartition(name, 1), ProducerIdAndEpoch(2**40, 3))
    with writer_on(broker, transactional_id, name) as writer:
        commit_rows(writer, "after", partition=1)
    assert committed(broker, name) == []

    code, out, err = run("find-hanging", "--topic", name, "--json")
    (found,) = read_output(out)["hanging"]
    assert code == 3
    names = ("partition", "producer_id", "producer_epoch", "start_offset")
    assert [found[name] for name in names] == [1, 2**40, 3, 0]
    assert found["reason"] == f"no coordinator knows producer id {2**40}"
    assert HOUR_MS <= found["duration_ms"] < 2 * HOUR_MS
    (remedy,) = found["remedies"]
    where = f"--bootstrap-server {broker.bootstrap} --topic {name} --partition 1 --start-offset 0"
    assert remedy.startswith(f"spark-2pc transactions abort {where}  # ")
    assert err == f"What to do:\n  {remedy}\n"
    assert run("find-hanging", "--topic", name, "--max-transaction-timeout", "120")[0] == 0
    assert run("find-hanging")[0] == 3

    pasted = shlex.split(remedy, comments=True)[2:]
    assert cli.main(["transactions", *pasted]) == 0
    wait_for(broker, name, "after")
    assert run("find-hanging", "--topic", name, "--partition", "1")[0] == 0
    code, out, err = run("abort", "--topic", name, "--partition", "1", "--start-offset", "0")
    assert (code, out) == (2, "")
    assert "no transaction is open there" in err


def test_data_behind_the_marker_hangs_and_can_be_aborted(
    broker: Broker, topic: MakeTopic, transactional_id: str, tool: TransactionTool
) -> None:
    """B15, B16: open in the partition, ended for the coordinator, as after a marker that was lost. The id goes on.

    Here by KAFKA-9144: a delayed record arrives behind the marker.
    """
    name = topic(broker=broker, partitions=1)
    where = TopicPartition(name, 0)
    with writer_on(broker, transactional_id, name) as writer:
        pair = pair_of(writer)
        commit_rows(writer, "first")
        wait_until(lambda: tool.describe(transactional_id).state.startswith("Complete"), what="the end markers")
        if broker.transaction_version == 2:
            # A delayed record of `pair` itself is fenced by the marker.
            produce_raw(broker.bootstrap, where, pair.bumped())
        else:
            produce_raw(broker.bootstrap, where, pair, sequence=1)
        (found,) = tool.find_hanging(topic=name)
        assert "is in state CompleteCommit" in found.reason
        assert tool.abort(name, 0, start_offset=found.start_offset).marker_written
        assert tool.find_hanging(topic=name) == ()
    with writer_on(broker, transactional_id, name) as writer:
        commit_rows(writer, "second")
    wait_for(broker, name, "first", "second")


# --- transactions that a coordinator knows -----------------------------------------------------------------------


def test_abort_refuses_an_ongoing_transaction(
    broker: Broker, topic: MakeTopic, transactional_id: str, tool: TransactionTool, run: Run
) -> None:
    """B17. Nothing was written: the transaction commits afterwards, and all of it is seen."""
    name = topic(broker=broker, partitions=1)
    with writer_on(broker, transactional_id, name) as writer:
        open_rows(writer, "a", "b")
        assert tool.find_hanging(topic=name, max_timeout_ms=0) == ()
        with pytest.raises(AbortRefusedError, match=f"transactional id '{transactional_id}'"):
            tool.abort(name, 0, start_offset=0)
        code, out, err = run("abort", "--topic", name, "--partition", "0", "--start-offset", "0")
        assert (code, out) == (3, "")
        assert f"force-terminate --bootstrap-server {broker.bootstrap} --transactional-id {transactional_id}" in err
        writer.commit_transaction()
    wait_for(broker, name, "a", "b")


@pytest.mark.parametrize("two_phase", [True, False], ids=["2pc", "timeout"])
def test_force_terminate_aborts_and_fences(
    broker: Broker, topic: MakeTopic, transactional_id: str, tool: TransactionTool, run: Run, two_phase: bool
) -> None:
    """B28. SEMANTICS of forceTerminateTransaction: also ends 2PC transactions, and resets their timeout until then."""
    name = topic(broker=broker, partitions=1)
    with writer_on(broker, transactional_id, name) as writer:
        if two_phase:
            open_rows(writer, "gone")
        else:  # InitProducerId as a producer without two-phase commit sends it
            with Cluster(options_for(broker.bootstrap)) as cluster:
                queries = TransactionQueries(cluster, lambda: 0)
                assert queries.init_producer_id(transactional_id, timeout_ms=54_321).error_code == 0
        before = tool.describe(transactional_id)
        assert before.two_phase_commit is two_phase
        code, out, err = run("force-terminate", "--transactional-id", transactional_id, "--json")
        done = read_output(out)["terminated"]
        assert (code, done["state_before"]) == (0, before.state)
        after = tool.describe(transactional_id)
        assert (after.state, after.partitions) == ("Empty", ())
        assert after.producer_epoch == done["producer_epoch"] > before.producer_epoch
        assert after.timeout_ms == (60_000 if two_phase else 54_321)
        assert ("had no timeout" in err, "is fenced" in err) == (two_phase, True)
        if two_phase:
            with pytest.raises(FencedError):
                writer.commit_transaction()
    with writer_on(broker, transactional_id, name) as writer:
        assert tool.describe(transactional_id).timeout_ms == TIMEOUT_NEVER_MS
        commit_rows(writer, "next")
    wait_for(broker, name, "next")


# --- looking -----------------------------------------------------------------------------------------------------


def test_list_and_describe(
    broker: Broker, topic: MakeTopic, transactional_id: str, tool: TransactionTool, run: Run
) -> None:
    """Kafka's columns and filters."""
    name = topic(broker=broker, partitions=2)
    with writer_on(broker, transactional_id, name) as writer:
        open_rows(writer, "a", partition=1)
        producer_id = pair_of(writer).producer_id
        quick = ListFilter(transactional_id_pattern=f"{transactional_id}.*", running_longer_than_ms=HOUR_MS)
        assert tool.list_transactions(quick) == ()
        options = ("--transactional-id-pattern", transactional_id, "--running-longer-than-ms", "0")
        code, out, _ = run("list", "--producer-id", str(producer_id), "--state", "Ongoing", *options)
        assert code == 0
        assert [line.split() for line in out.splitlines()] == [
            ["TransactionalId", "Coordinator", "ProducerId", "TransactionState"],
            [transactional_id, "1", str(producer_id), "Ongoing"],
        ]
        code, out, _ = run("describe", "--transactional-id", transactional_id)
        head, line = (line.split() for line in out.splitlines())
        shown = dict(zip(head, line, strict=True))
        assert (code, shown["TransactionState"], shown["TopicPartitions"]) == (0, "Ongoing", f"{name}-1")
        assert shown["TransactionTimeoutMs"] == str(TIMEOUT_NEVER_MS)
        assert 0 <= int(shown["TransactionDurationMs"]) < HOUR_MS
        code, out, _ = run("describe-producers", "--topic", name, "--partition", "1", "--broker-id", "1", "--json")
        (producer,) = read_output(out)["producers"]
        assert (code, producer["producer_id"], producer["start_offset"]) == (0, producer_id, 0)
        writer.abort_transaction()
    assert run("describe", "--transactional-id", "nobody")[0] == 1


__all__ = ["make_job", "nursery"]

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
def broker_at_2(pytestconfig: pytest.Config, provider: Provider) -> Iterator[Broker]:
    """A broker that grants two-phase commit and verifies no records."""
    started = or_skip(pytestconfig, lambda: provider.start_broker(BrokerRequest(2, True, VERIFIES_NOTHING)))
    yield started
    started.close()


def cases() -> Iterator[tuple[str, int]]:
    for name, situation in SITUATIONS.items():
        yield from ((name, number) for number in range(situation.commands))


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("name", "number"), list(cases()))
def test_a_printed_command_does_what_it_says(
    name: str,
    number: int,
    broker_at_2: Broker,
    make_job: MakeJob,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """B16, B28: as it stands, but for the URL where no database was named. No other one is printed."""
    situation = SITUATIONS[name]
    job = make_job(broker_at_2)
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
