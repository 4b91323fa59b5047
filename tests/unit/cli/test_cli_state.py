"""``spark-2pc state``: what it takes, and what it prints without a database."""

from __future__ import annotations

from typing import Any

import pytest

from jdbc_state import SchemaReport
from spark_2pc_sink import cli
from spark_2pc_sink.cli import exits, state
from tests.harness.json_contract import read_output

AT = ("--database", "postgresql://h/d")


class Store:
    found = SchemaReport(there=True, ready=True, lines=("it is there",))

    def __init__(self, url: str, settings: Any) -> None:
        assert url == "postgresql+psycopg2://h/d"
        assert (settings.state_table, settings.history_table) == ("mine", "mine_history")

    def migrate(self) -> list[str]:
        return []

    def check_schema(self, role: str | None) -> SchemaReport:
        assert role == "job"
        return self.found

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("there", "ready", "code"),
    [(True, True, exits.EXIT_SETTLED), (True, False, exits.EXIT_IN_DOUBT), (False, False, exits.EXIT_NOT_KNOWN)],
)
def test_the_exit_code_of_a_check(
    there: bool, ready: bool, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """D2: for scripts that deploy a job."""
    monkeypatch.setattr(state, "SqlStateStore", Store)
    monkeypatch.setattr(Store, "found", SchemaReport(there=there, ready=ready, lines=("what was found",)))
    words = ["state", "check", *AT, "--state-table", "mine", "--role", "job"]
    assert cli.main(words) == code
    assert capsys.readouterr().out == "what was found\n"
    assert cli.main([*words, "--json"]) == code
    assert read_output(capsys.readouterr().out)["lines"] == ["what was found"]


def test_the_statements_need_no_database(capsys: pytest.CaptureFixture[str]) -> None:
    """C15: for those who run them with a role of their own."""
    assert cli.main(["state", "ddl", "--role", "Job", "--state-schema", "ops"]) == exits.EXIT_SETTLED
    printed = capsys.readouterr().out
    assert "COMMENT ON TABLE ops.kafka_transaction_state IS 'spark_2pc_sink state, version 2';" in printed
    assert 'GRANT USAGE ON SCHEMA ops TO "Job";' in printed
    assert 'GRANT SELECT, INSERT, UPDATE ON ops.kafka_transaction_state TO "Job";' in printed
    assert 'GRANT SELECT, INSERT, UPDATE, DELETE ON ops.kafka_transaction_state_history TO "Job";' in printed
    assert 'GRANT SELECT, INSERT, DELETE ON ops.kafka_transaction_state_actions TO "Job";' in printed
    assert cli.main(["state", "ddl", "--history-batches", "0"]) == exits.EXIT_SETTLED
    printed = capsys.readouterr().out
    assert ("history" not in printed, "actions" not in printed) == (True, True)
    assert "GRANT" not in printed
