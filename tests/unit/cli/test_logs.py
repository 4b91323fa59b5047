"""The log of a command: text or JSON on standard error, and nothing of it is left behind."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from spark_2pc_sink import cli
from spark_2pc_sink.cli import sinks
from spark_2pc_sink.recovery.report import RecoveryReport

LOG = logging.getLogger("spark_2pc_sink.test")
WORDS = ["recover", "--bootstrap-server", "h:1", "--database", "postgresql://h/d", "--transactional-id", "orders"]


@pytest.fixture(autouse=True)
def lines_of_three_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    def recover(**_: Any) -> RecoveryReport:
        LOG.info("for those who ask")
        LOG.warning("mind %s", "this")
        try:
            int("many")
        except ValueError:
            LOG.exception("of another sink", extra={"transactional_id": "payments"})
        return RecoveryReport(transactional_id="orders", settled=True)

    monkeypatch.setattr(sinks, "recover", recover)


def test_a_log_line_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    """With the id of the record, or else that of the command."""
    assert cli.main([*WORDS, "--log-json", "--log-level", "INFO"]) == 0
    info, warning, error = (json.loads(line) for line in capsys.readouterr().err.splitlines())
    assert info.pop("time").endswith("+00:00")
    assert info == {
        "level": "INFO",
        "logger": "spark_2pc_sink.test",
        "message": "for those who ask",
        "transactional_id": "orders",
        "exception": None,
    }
    assert (warning["message"], warning["level"]) == ("mind this", "WARNING")
    assert error["transactional_id"] == "payments"
    assert error["exception"].endswith("invalid literal for int() with base 10: 'many'")


@pytest.mark.parametrize(("level", "logged"), [("ERROR", 1), ("WARNING", 2), ("INFO", 3), (None, 2)])
def test_the_level_is_warning_unless_told(capsys: pytest.CaptureFixture[str], level: str | None, logged: int) -> None:
    """Before the command's name or behind it; and the process logs afterwards as it did before."""
    root = logging.getLogger()
    before = (root.level, list(root.handlers))
    words = [] if level is None else ["--log-level", level]
    assert cli.main([*words, *WORDS]) == 0
    assert capsys.readouterr().err.count(" spark_2pc_sink.test: ") == logged
    assert (root.level, root.handlers) == before
