"""Which case is asked of whom."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.conformance.cases import ALL_LEVELS, Case

#: Who is asked, and the marks that tell what it needs.
SUBJECTS = {"machine": (), "reference": (), "kafka": ("kafka", "java")}
#: Those that are servers, as parameters.
WIRE_SUBJECTS = [
    pytest.param(subject, marks=[getattr(pytest.mark, mark) for mark in marks])
    for subject, marks in SUBJECTS.items()
    if subject != "machine"
]

_STUCK = "transaction.version 0: Kafka fails half-way and leaves the id pending until it is loaded again"
#: Where a subject answers otherwise than Kafka on purpose, by subject, transaction.version and case.
DEPARTURES = {
    ("machine", 0, "1.4/new-abort-on-an-old-log"): _STUCK,
    ("reference", 0, "1.4/new-abort-on-an-old-log"): _STUCK,
}


def _marks(subject: str, level: int, case: Case) -> list[pytest.MarkDecorator]:
    marks = [getattr(pytest.mark, mark) for mark in SUBJECTS[subject]]
    if subject == "kafka" and level < max(ALL_LEVELS):
        # The answers are written down: what they are compared with below the newest level changes with Kafka alone.
        marks.append(pytest.mark.slow)
    departure = DEPARTURES.get((subject, level, case.name))
    return marks if departure is None else [*marks, pytest.mark.xfail(strict=True, reason=departure)]


def parametrize(metafunc: pytest.Metafunc, cases: Sequence[Case], *, with_machine: bool = False) -> None:
    """Run a test with each case and each subject at each transaction.version where the case has its say."""
    chosen = [
        pytest.param(
            (subject, level),
            each,
            marks=_marks(subject, level, each),
            id=f"{subject}-tv{level}-{each.name}",
        )
        for subject in SUBJECTS
        if with_machine or subject != "machine"
        for level in ALL_LEVELS
        for each in cases
        if level in each.levels
    ]
    metafunc.parametrize(("subject", "case"), chosen, indirect=["subject"])
