"""Which case is asked of whom."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.conformance.cases import ALL_LEVELS, Case

#: Who is asked, and the marks that tell what it needs.
SUBJECTS = {"machine": (), "kafka": ("kafka", "java")}


def parametrize(metafunc: pytest.Metafunc, cases: Sequence[Case], *, with_machine: bool = False) -> None:
    """Run a test with each case and each subject at each transaction.version where the case has its say."""
    chosen = [
        pytest.param(
            (subject, level),
            each,
            marks=[getattr(pytest.mark, mark) for mark in marks],
            id=f"{subject}-tv{level}-{each.name}",
        )
        for subject, marks in SUBJECTS.items()
        if with_machine or subject != "machine"
        for level in ALL_LEVELS
        for each in cases
        if level in each.levels
    ]
    metafunc.parametrize(("subject", "case"), chosen, indirect=["subject"])
