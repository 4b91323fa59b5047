"""``spark-2pc transactions`` and ``verify`` without servers: words, exit codes, tables, JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jdbc_state import StateRow
from spark_2pc_sink import VerifyReport, cli
from spark_2pc_sink.cli import transactions, verify as command
from spark_2pc_sink.transactions import TerminatedTransaction, TransactionDetails, TransactionListing
from spark_2pc_sink.transactions.ending import KnownSinks
from spark_2pc_sink.verification.report import BatchResult, Difference, NotChecked, OpenTable, OpenTransactionRows
from tests.harness.json_contract import read_output
from tests.unit.recovery.test_report import ROW

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
    know_sinks(monkeypatch, replace(ROW, transactional_id="a"))
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


SIDES = ["--bootstrap-server", "h:1", "--database", "postgresql://h/d", "--transactional-id", "orders"]
SAME = VerifyReport(
    transactional_id="orders",
    verdict="same",
    up_to=1,
    records=40,
    rows=40,
    columns=("id", "payload"),
    batches=(BatchResult(batch=0, decision=1, records=20, found=20, digest_same=True),),
)
DIFFERENT = replace(
    SAME,
    verdict="different",
    counts={"missing_in_table": 3, "stranger": 1},
    differences=(
        Difference(
            kind="missing_in_table",
            text="no row",
            key="id=7",
            batch=1,
            topic="t",
            partition=2,
            offset=9,
            record={"id": 7},
        ),
        Difference(kind="stranger", text="of another producer", topic="t", partition=0, offset=4, last_offset=5),
    ),
    not_checked=(NotChecked("the headers", "the table has none"),),
)
INCONCLUSIVE = replace(
    SAME,
    verdict="inconclusive",
    not_checked=(
        NotChecked("the headers", "the table has none"),
        NotChecked("the table", "it is not readable", "pass --table TABLE"),
    ),
)


class Run:
    """Answers `verify` as the test wants it, and keeps what it was asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answer = SAME
        self.asked: dict[str, Any] = {}
        monkeypatch.setattr(command, "verify", self)

    def __call__(self, **asked: Any) -> VerifyReport:
        self.asked = asked
        asked.pop("progress")("reading", 5, 10)
        return self.answer


@pytest.fixture
def verify_run(monkeypatch: pytest.MonkeyPatch) -> Run:
    return Run(monkeypatch)


def test_it_asks_for_what_was_said(verify_run: Run) -> None:
    words = ["--table", "public.t", "--mode", "upsert", "--keys", "id, line", "--order-by", "at", "--since", "3"]
    words += ["--record-columns", "id = key::bigint", "--open", "--write-missing", "dir", "--state-schema", "ops"]
    assert cli.main(["verify", *SIDES, *words]) == 0
    assert verify_run.asked == {
        "transactional_id": "orders",
        "kafka": {"bootstrap.servers": "h:1"},
        "database": "postgresql://h/d",
        "state_schema": "ops",
        "table": "public.t",
        "mode": "upsert",
        "keys": ["id", "line"],
        "order_by": "at",
        "record_columns": "id = key::bigint",
        "schema_registry": None,
        "since": 3,
        "last": None,
        "batch": None,
        "open_transaction": True,
        "table_only": False,
        "write_missing": "dir",
    }


def test_the_schema_registry_is_that_of_the_command_line_or_of_the_file(verify_run: Run, tmp_path: Path) -> None:
    """The file may have a login, which no command line should."""
    file = tmp_path / "orders.toml"
    file.write_text('[schema_registry]\nurl = "http://file:8081"\n"basic.auth.user.info" = "job:word"\n')
    cli.main(["verify", *SIDES, "--config", str(file)])
    assert verify_run.asked["schema_registry"] == {"url": "http://file:8081", "basic.auth.user.info": "job:word"}
    cli.main(["verify", *SIDES, "--config", str(file), "--schema-registry", "http://said:8081"])
    assert verify_run.asked["schema_registry"] == {"url": "http://said:8081"}


@pytest.mark.parametrize(
    ("answer", "code"),
    [(SAME, 0), (DIFFERENT, 3), (INCONCLUSIVE, 5), (replace(INCONCLUSIVE, known=False), 4)],
    ids=["same", "different", "inconclusive", "not known"],
)
def test_exit_codes(verify_run: Run, answer: VerifyReport, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    verify_run.answer = answer
    assert cli.main(["verify", *SIDES]) == code
    capsys.readouterr()
    assert cli.main(["verify", *SIDES, "--json"]) == code
    found = read_output(capsys.readouterr().out)
    assert (found["exit_code"], found["verdict"], found["same"]) == (code, answer.verdict, code == 0)


def test_what_the_share_of_an_open_transaction_speaks_for() -> None:
    """A table with some of the rows speaks against an abort, also where another table of the topic has none."""
    one = OpenTransactionRows(state="Ongoing", records=20, in_table=0)
    assert one.share == "none"
    assert replace(one, in_table=None).share == "unknown"
    assert replace(one, in_table=3).share == "some"
    assert replace(one, records=0).share == "no_records"
    assert replace(one, tables=(OpenTable(table="t", records=20, in_table=0),)).share == "none"
    assert replace(one, tables=(OpenTable(table="t", records=20, in_table=1),)).share == "some"
