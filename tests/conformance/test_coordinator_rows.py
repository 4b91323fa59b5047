"""Sections 1, 2.1 to 2.4, 2.7, 2.8 and 2.10: what the coordinator answers, row by row."""

from __future__ import annotations

import pytest

from tests.conformance import cases_end, cases_init, cases_partitions, cases_queries
from tests.conformance.cases import Case
from tests.conformance.subjects import Subject, parametrize

CASES = [*cases_init.CASES, *cases_partitions.CASES, *cases_end.CASES, *cases_queries.CASES]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    parametrize(metafunc, CASES, with_machine=True)


def test_row(subject: Subject, case: Case) -> None:
    subject.run(case)
