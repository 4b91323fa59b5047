"""The reason of a decision: given, or typed on a terminal; without one nothing is done."""

from __future__ import annotations

import io
from argparse import Namespace

import pytest

from spark_2pc_sink.cli.options import reason_for
from spark_2pc_sink.errors import ConfigurationError


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_person_on_a_terminal_is_asked(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """On standard error: standard output may be JSON."""
    monkeypatch.setattr("sys.stdin", Terminal(" the disk is gone \n"))
    assert reason_for(Namespace(), "--drop") == "the disk is gone"
    out, err = capsys.readouterr()
    assert (out, err.startswith("Why --drop?")) == ("", True)


@pytest.mark.parametrize("terminal", [Terminal("\n"), Terminal(""), io.StringIO("typed before\n")])
def test_without_one_nothing_is_done(monkeypatch: pytest.MonkeyPatch, terminal: io.StringIO) -> None:
    """Nobody says one, or nobody can be asked."""
    monkeypatch.setattr("sys.stdin", terminal)
    with pytest.raises(ConfigurationError, match="--reason") as refused:
        reason_for(Namespace(), "--drop")
    assert refused.value.remedy == "pass --reason 'why' with --drop"
