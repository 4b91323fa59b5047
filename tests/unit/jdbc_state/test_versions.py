"""What a refusal of another version says; which one is there is asked of a server, in test_state_store_versions.py."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import jdbc_state
from jdbc_state.schema import StateTables
from jdbc_state.versions import FoundTable, making, migration, refusal
from spark_2pc_sink.choices.choice import state_command
from tests.unit.jdbc_state.test_model import SETTINGS


def test_the_command_can_be_pasted_whatever_the_names() -> None:
    """C15: into a shell, and then read as the options read names."""
    settings = replace(SETTINGS, schema_help=state_command)
    remedy = making(settings, role="o'clock")
    assert remedy.partition("  # ")[0].endswith(""" --history-table '"History"' --role 'o'"'"'clock'""")
    remedy = migration(settings, role="owner", where="h:5432/shop")
    assert remedy.partition("  # ")[0] == (
        "spark-2pc state migrate --database postgresql://owner@h:5432/shop "
        """--state-schema '"od""d"' --state-table state --history-table '"History"'"""
    )


def test_a_writer_without_commands_is_told_what_to_call() -> None:
    """The package stands on its own."""
    assert making(SETTINGS, role="job").startswith("run the statements of jdbc_state.ddl(settings, role='job')")
    assert migration(SETTINGS, role="owner", where="h/d").startswith(
        "as owner: call migrate() of a SqlStateStore for h/d"
    )
    sources = "".join(path.read_text() for path in Path(jdbc_state.__file__).parent.glob("*.py"))
    assert "spark-2pc" not in sources
    assert re.findall(r".*spark_2pc_sink.*", sources) == ['MARK = "spark_2pc_sink state, version "']


def test_a_table_of_this_version_is_not_refused() -> None:
    """C15: any other is, by its name."""
    tables = StateTables.named(SETTINGS)
    this = FoundTable(name="a.state", version=2, owner="owner", owned=False, lacks="")
    assert refusal(this, tables, SETTINGS, where="h/d") is None
    said = [refusal(replace(this, version=version), tables, SETTINGS, where="h/d") for version in (None, 1, 3)]
    assert all(each is not None and "a.state" in each.operation for each in said)
