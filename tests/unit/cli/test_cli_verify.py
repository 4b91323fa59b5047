"""``spark-2pc verify`` without servers: words, exit codes, what is printed for people and for programs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spark_2pc_sink import VerifyReport, cli
from spark_2pc_sink.cli import verify as command
from spark_2pc_sink.verification.report import BatchResult, Difference, NotChecked, OpenTable, OpenTransactionRows
from tests.harness.json_contract import read_output

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
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    return Run(monkeypatch)


def test_it_asks_for_what_was_said(run: Run) -> None:
    words = ["--table", "public.t", "--mode", "upsert", "--keys", "id, line", "--order-by", "at", "--since", "3"]
    words += ["--record-columns", "id = key::bigint", "--open", "--write-missing", "dir", "--state-schema", "ops"]
    assert cli.main(["verify", *SIDES, *words]) == 0
    assert run.asked == {
        "transactional_id": "orders",
        "kafka": {"bootstrap.servers": "h:1"},
        "database": "postgresql://h/d",
        "state_schema": "ops",
        "table": "public.t",
        "mode": "upsert",
        "keys": ["id", "line"],
        "order_by": "at",
        "record_columns": "id = key::bigint",
        "since": 3,
        "last": None,
        "batch": None,
        "open_transaction": True,
        "table_only": False,
        "write_missing": "dir",
    }


def test_the_schema_registry_is_that_of_the_command_line_or_of_the_file(run: Run, tmp_path: Path) -> None:
    """The file may have a login, which no command line should."""
    file = tmp_path / "orders.toml"
    file.write_text('[schema_registry]\nurl = "http://file:8081"\n"basic.auth.user.info" = "job:word"\n')
    cli.main(["verify", *SIDES, "--config", str(file)])
    assert run.asked["schema_registry"] == {"url": "http://file:8081", "basic.auth.user.info": "job:word"}
    cli.main(["verify", *SIDES, "--config", str(file), "--schema-registry", "http://said:8081"])
    assert run.asked["schema_registry"] == {"url": "http://said:8081"}


@pytest.mark.parametrize(
    ("answer", "code"),
    [(SAME, 0), (DIFFERENT, 3), (INCONCLUSIVE, 5), (replace(INCONCLUSIVE, known=False), 4)],
    ids=["same", "different", "inconclusive", "not known"],
)
def test_exit_codes(run: Run, answer: VerifyReport, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    run.answer = answer
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
