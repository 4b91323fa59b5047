"""What a refusal of another version says; which one is there is asked of a server, in test_state_store_versions.py."""

from __future__ import annotations

from dataclasses import replace

from jdbc_state.schema import StateTables
from jdbc_state.versions import FoundTable, migrate_command, refusal
from tests.unit.jdbc_state.test_model import SETTINGS


def test_the_command_can_be_pasted_whatever_the_names() -> None:
    """C15: into a shell, and then read as the options read names."""
    assert migrate_command(SETTINGS, role="owner", where="h:5432/shop") == (
        "spark-2pc state migrate --database postgresql://owner@h:5432/shop "
        """--state-schema '"od""d"' --state-table state --history-table '"History"'"""
    )


def test_a_table_of_this_version_is_not_refused() -> None:
    """C15: any other is, by its name."""
    tables = StateTables.named(SETTINGS)
    this = FoundTable(name="a.state", version=2, owner="owner", owned=False, lacks="")
    assert refusal(this, tables, SETTINGS, where="h/d") is None
    said = [refusal(replace(this, version=version), tables, SETTINGS, where="h/d") for version in (None, 1, 3)]
    assert all(each is not None and "a.state" in each.operation for each in said)
