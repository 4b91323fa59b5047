"""``spark-2pc transactions`` without servers: words, tables, JSON and exit codes."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from jdbc_state import StateRow
from spark_2pc_sink import cli
from spark_2pc_sink.cli import transactions
from spark_2pc_sink.errors import AbortRefusedError
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.transactions import (
    AbortedOpenTransaction,
    HangingTransaction,
    ListFilter,
    TerminatedTransaction,
    TransactionDetails,
    TransactionListing,
)
from spark_2pc_sink.transactions.remedies import KnownSinks
from tests.harness.json_contract import read_output

SERVER = ["--bootstrap-server", "h:1"]
ENDED = AbortedOpenTransaction("t", 1, 7, 2, -1, 5, marker_written=True, reason="nobody knows it")


class FakeTool:
    """Notes what it is asked, and answers with what the test has put in."""

    def __init__(self) -> None:
        self.kafka: dict[str, Any] = {}
        self.calls: list[tuple[Any, ...]] = []
        self.answers: dict[str, Any] = {}

    def connect(self, kafka: Mapping[str, Any]) -> FakeTool:
        self.kafka = dict(kafka)
        return self

    def __enter__(self) -> FakeTool:
        return self

    def __exit__(self, *_: object) -> None:
        self.calls.append(("close",))

    def __getattr__(self, name: str) -> Any:
        def call(*positional: Any, **named: Any) -> Any:
            self.calls.append((name, *positional, named))
            answer = self.answers[name]
            if isinstance(answer, Exception):
                raise answer
            return answer

        return call


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> FakeTool:
    fake = FakeTool()
    monkeypatch.setattr(transactions, "TransactionTool", fake.connect)
    return fake


def run(*words: str) -> int:
    return cli.main(["transactions", *words])


def know_sinks(monkeypatch: pytest.MonkeyPatch, *rows: StateRow) -> None:
    """Lets the database that the command line names have these sinks."""
    monkeypatch.setattr(transactions, "look_up_sinks", lambda *_: KnownSinks.of(rows))


def columns(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("\t")] for line in text.splitlines()]


# --- the commands ------------------------------------------------------------------------------------------------


def test_list(tool: FakeTool, capsys: pytest.CaptureFixture[str]) -> None:
    tool.answers["list_transactions"] = (
        TransactionListing("a", 0, 7, "Ongoing"),
        TransactionListing("bb", 1, 8, "Empty"),
    )
    filters = ["--running-longer-than-ms", "-1", "--transactional-id-pattern", "a.*", "--broker-id", "1"]
    states = ["--state", "Ongoing", "--state", "Empty", "--producer-id", "7"]
    assert run("list", *SERVER, *filters, *states) == 0
    assert capsys.readouterr().out == (
        "TransactionalId\tCoordinator\tProducerId\tTransactionState\n"
        "a              \t0          \t7         \tOngoing\n"
        "bb             \t1          \t8         \tEmpty\n"
    )
    assert tool.calls == [("list_transactions", ListFilter(("Ongoing", "Empty"), (7,), -1, "a.*", 1), {}), ("close",)]


def test_describe(tool: FakeTool, capsys: pytest.CaptureFixture[str]) -> None:
    """A value that is not there is None, as in Kafka's tool."""
    partitions = (TopicPartition("t", 0), TopicPartition("t", 1))
    tool.answers["describe"] = TransactionDetails(3, "a", 7, 2, "Ongoing", 9, 100, 50, partitions)
    assert run("describe", *SERVER, "--transactional-id", "a") == 0
    head, row = columns(capsys.readouterr().out)
    assert dict(zip(head, row, strict=True)) == {
        "CoordinatorId": "3",
        "TransactionalId": "a",
        "ProducerId": "7",
        "ProducerEpoch": "2",
        "TransactionState": "Ongoing",
        "TransactionTimeoutMs": "9",
        "CurrentTransactionStartTimeMs": "100",
        "TransactionDurationMs": "50",
        "TopicPartitions": "t-0,t-1",
    }
    tool.answers["describe"] = TransactionDetails(3, "a", 7, 2, "Empty", 9, None, None, ())
    run("describe", *SERVER, "--transactional-id", "a")
    assert columns(capsys.readouterr().out)[1][6:8] == ["None", "None"]
    run("describe", *SERVER, "--transactional-id", "a", "--json")
    found = read_output(capsys.readouterr().out)["transaction"]
    assert (found["transactional_id"], found["start_time_ms"], found["partitions"]) == ("a", None, [])


def test_find_hanging_is_exit_code_3_when_something_hangs(tool: FakeTool, capsys: pytest.CaptureFixture[str]) -> None:
    """The way out is on stderr, so that the table can be read by a program."""
    row = HangingTransaction("t", 1, 7, 2, -1, 5, 1_000, 16 * 60_000 + 59_999, "nobody knows it")
    tool.answers["find_hanging"] = (row,)
    assert run("find-hanging", *SERVER) == 3
    assert tool.calls[0][1] == {"topic": None, "partition": None, "broker_id": None, "max_timeout_ms": 900_000}
    out, err = capsys.readouterr()
    assert columns(out)[1] == ["t", "1", "7", "2", "-1", "5", "1000", "16", "nobody knows it"]
    command = "spark-2pc transactions abort --bootstrap-server h:1 --topic t --partition 1 --start-offset 5"
    change = "readers never see its records in t-1; refused if a coordinator knows it"
    assert err == f"What to do:\n  {command}  # {change}\n"


def test_abort_by_start_offset(tool: FakeTool, capsys: pytest.CaptureFixture[str]) -> None:
    tool.answers["abort"] = ENDED
    assert run("abort", *SERVER, "--topic", "t", "--partition", "1", "--start-offset", "5") == 0
    expected = {"start_offset": 5, "producer": None, "coordinator_epoch": None}
    assert tool.calls[0] == ("abort", "t", 1, expected)
    assert columns(capsys.readouterr().out)[1] == ["t", "1", "7", "2", "-1", "5", "nobody knows it"]


def test_a_refused_abort_is_exit_code_3(tool: FakeTool, capsys: pytest.CaptureFixture[str]) -> None:
    tool.answers["abort"] = AbortRefusedError(
        partition="t-1", start_offset=5, reason="it is known", remedies=("Do that",)
    )
    assert run("abort", *SERVER, "--topic", "t", "--partition", "1", "--start-offset", "5") == 3
    out, err = capsys.readouterr()
    said, *settles = err.splitlines()
    assert said == "spark-2pc: the transaction that begins at offset 5 of t-1 was not aborted: it is known."
    assert (out, settles) == ("", ["What to do:", "  Do that"])


@pytest.mark.parametrize(
    ("command", "option"),
    [("force-terminate", "--transactional-id"), ("forceTerminateTransaction", "--transactionalId")],
)
def test_force_terminate(tool: FakeTool, capsys: pytest.CaptureFixture[str], command: str, option: str) -> None:
    """Warnings go to stderr. Kafka's spelling works too."""
    tool.answers["force_terminate"] = TerminatedTransaction("a", "Ongoing", (), 7, 3, 60_000, ("mind this",))
    assert run(command, *SERVER, option, "a") == 0
    out, err = capsys.readouterr()
    assert columns(out)[1] == ["a", "Ongoing", "7", "3", "60000"]
    said, not_noted, *settles = err.splitlines()
    assert said == "spark-2pc: mind this"
    assert "was not logged: pass --database URL and --reason" in not_noted
    assert settles[1].startswith("  spark-2pc recover --bootstrap-server h:1 --database URL --transactional-id a  # ")
    assert tool.calls[0] == ("force_terminate", "a", {})


def test_force_terminate_with_a_note(
    tool: FakeTool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """D4: the reason is asked for where it is written down, and refused where it is not."""
    know_sinks(monkeypatch)
    tool.answers["force_terminate"] = TerminatedTransaction("a", "Ongoing", (), 7, 3, 60_000, ())
    noted = ("--database", "postgresql://h/d", "--state-table", "mine")
    assert run("force-terminate", *SERVER, "--transactional-id", "a", *noted) == 2
    assert "pass --reason 'why' with force-terminate" in capsys.readouterr().err
    assert run("force-terminate", *SERVER, "--transactional-id", "a", *noted, "--reason", "readers wait") == 0
    assert capsys.readouterr().err == ""
    said = {"database": "postgresql://h/d", "state_table": "mine", "reason": "readers wait"}
    assert tool.calls[0] == ("force_terminate", "a", said)


# --- whose they are ----------------------------------------------------------------------------------------------

ROW = StateRow(
    transactional_id="a",
    prepared_transaction_state="7:3",
    status="decided",
    generation=1,
    claimed_at=datetime(2026, 11, 24, tzinfo=timezone.utc),
)
RECOVER = "spark-2pc recover --bootstrap-server h:1 --database postgresql://h/d --transactional-id a  # "
WITH_DATABASE = [*SERVER, "--database", "postgresql://h/d"]


def test_list_names_what_ends_the_open_transactions_of_sinks(
    tool: FakeTool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And in JSON which ids are of sinks; null without a database."""
    tool.answers["list_transactions"] = (
        TransactionListing("a", 0, 7, "Ongoing"),
        TransactionListing("b", 1, 8, "Ongoing"),
    )
    assert run("list", *SERVER, "--json") == 0
    out, err = capsys.readouterr()
    assert ([row["sink"] for row in read_output(out)["transactions"]], err) == ([None, None], "")
    know_sinks(monkeypatch, ROW)
    assert run("list", *WITH_DATABASE, "--json") == 0
    out, err = capsys.readouterr()
    assert [row["sink"] for row in read_output(out)["transactions"]] == [True, False]
    assert err == f"What to do:\n  {RECOVER}ends it as the sink's database has decided\n"


# --- errors and connections --------------------------------------------------------------------------------------


def test_the_connection_may_come_before_and_behind_the_command(tool: FakeTool, tmp_path: Path) -> None:
    """As with Kafka's tool, whose options come before it."""
    tool.answers["list_transactions"] = ()
    file = tmp_path / "admin.properties"
    file.write_text("# who\n! asks\n\nsasl.password = a=b\nclient.id=x\n")
    before = ["--command-config", str(file), "--kafka", "security.protocol=SASL_SSL"]
    assert run(*before, "list", *SERVER, "--kafka", "client.id=x", "--kafka", "sasl.username=u") == 0
    assert tool.kafka == {
        "bootstrap.servers": "h:1",
        "security.protocol": "SASL_SSL",
        "sasl.username": "u",
        "sasl.password": "a=b",
        "client.id": "x",
    }
