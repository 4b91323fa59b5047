"""``spark-2pc check``: where its options come from, and its exit codes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spark_2pc_sink import cli
from spark_2pc_sink.cli import check
from spark_2pc_sink.options import Records, Rows, SinkOptions
from spark_2pc_sink.sink.check.findings import CheckReport, Finding, Level
from tests.harness.json_contract import read_output


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "orders.toml"
    path.write_text(
        'transactional_id = "orders"\ndatabase = "postgresql://h/d"\ntable = "orders"\n'
        '[kafka]\nbootstrap.servers = "h:1"\n'
    )
    return path


def options(*words: str) -> SinkOptions:
    return check.sink_options(cli.command_parser(["check"]).parse_args(["check", *words]))


def test_every_option_is_a_flag(file: Path) -> None:
    """Beside the file, by position or by flag; and with the environment where both say nothing."""
    found = options(str(file), "--topic", "t", "--upsert-keys", "a,b", "--mode", "upsert", "--create-table", "true")
    names = ("topic", "upsert_keys", "create_table")
    assert [found.given()[name] for name in names] == ["t", ("a", "b"), True]
    assert options("--config", str(file), "--history-batches", "7").history_batches == 7
    writes = '[{"kind": "records", "topic": "t"}, {"kind": "rows", "table": "t"}]'
    file.write_text(file.read_text().replace('table = "orders"\n', ""))
    assert options(str(file), "--writes", writes).writes == (Records("t"), Rows("t"))


@pytest.mark.parametrize(
    ("level", "strict", "code"),
    [("ok", True, 0), ("not_checked", True, 0), ("warning", False, 0), ("warning", True, 3), ("problem", False, 3)],
)
def test_exit_codes(
    file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    level: Level,
    strict: bool,
    code: int,
) -> None:
    """Of warnings only where that is asked for. The JSON is of the documented form."""

    def found(options: SinkOptions, rows: None, **_: Any) -> CheckReport:
        return CheckReport(options.transactional_id, (Finding("topic t", level, "text", "do"),), "All.")

    monkeypatch.setattr(check, "check_sink", found)
    words = ["check", str(file), *(["--strict"] if strict else [])]
    assert cli.main(words) == code
    assert "topic t  text" in capsys.readouterr().out
    assert cli.main([*words, "--json"]) == code
    shown = read_output(capsys.readouterr().out)
    assert (shown["ready"], shown["findings"][0]["level"]) == (level != "problem", level)
