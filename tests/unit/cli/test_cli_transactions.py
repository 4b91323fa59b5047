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
from spark_2pc_sink.transactions import (
    TerminatedTransaction,
    TransactionDetails,
    TransactionListing,
)
from spark_2pc_sink.transactions.remedies import KnownSinks
from tests.harness.json_contract import read_output

SERVER = ["--bootstrap-server", "h:1"]


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


def test_describe_in_json(tool: FakeTool, capsys: pytest.CaptureFixture[str]) -> None:
    tool.answers["describe"] = TransactionDetails(3, "a", 7, 2, "Empty", 9, None, None, ())
    run("describe", *SERVER, "--transactional-id", "a", "--json")
    found = read_output(capsys.readouterr().out)["transaction"]
    assert (found["transactional_id"], found["start_time_ms"], found["partitions"]) == ("a", None, [])


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
