"""Sections 1.2 to 1.4, 2.5, 2.6, 2.9, 3 and KIP-584: the log, what leaders answer and what readers see, row by row."""

from __future__ import annotations

import pytest

from tests.conformance import cases_features, cases_log, cases_markers, cases_offsets, cases_produce, cases_read
from tests.conformance.cases import Case
from tests.conformance.subjects import Subject, parametrize

CASES = [
    *cases_log.CASES,
    *cases_produce.CASES,
    *cases_markers.CASES,
    *cases_offsets.CASES,
    *cases_read.CASES,
    *cases_features.CASES,
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    parametrize(metafunc, CASES)


def test_row(subject: Subject, case: Case) -> None:
    subject.run(case)
