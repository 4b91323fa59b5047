"""What users without rights are answered, row by row; and what a broker that grants nobody enable2Pc answers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_2pc_sink.testing import CapabilityError, ReferenceCoordinator
from tests.conformance.access import AccessSubject, secured
from tests.conformance.cases import Case, table
from tests.conformance.cases_access import CASES
from tests.conformance.machine import EVENTS, MachineSubject
from tests.conformance.operations import Init, ask
from tests.conformance.raw_client import HungUpError, RawClient
from tests.conformance.servers import find_coordinators
from tests.conformance.subjects import WIRE_SUBJECTS
from tests.conftest import _skip


@pytest.fixture(scope="module", params=WIRE_SUBJECTS)
def subject(request: pytest.FixtureRequest) -> Iterator[AccessSubject]:
    try:
        with secured(request.param, len(CASES)) as (administrators, users):
            made = AccessSubject(administrators, users, CASES)
            yield made
            made.close()
    except CapabilityError as error:
        _skip(request.config, str(error))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_row(subject: AccessSubject, case: Case) -> None:
    subject.run(case)


@pytest.mark.parametrize(
    "case", [each for each in CASES if all(type(step.operation) in EVENTS for step in each.steps)], ids=str
)
def test_row_of_the_pure_coordinator(case: Case) -> None:
    MachineSubject(2).run_as_user(case)


#: 2.1: refused before keepPreparedTxn and the timeout, after the empty id; without it nothing is amiss.
NOT_GRANTED = table("""
    two-phase: init two_phase v6 -> TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    two-phase-and-keep: init two_phase keep v6 -> TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    two-phase-and-no-timeout: init two_phase timeout_ms=0 v6 -> TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    keep: init keep v6 -> UNSUPPORTED_VERSION
    empty-id: init tid= two_phase v6 -> INVALID_REQUEST
    no-id: init tid=none two_phase v6 -> NEW 0
    neither: init v6 -> NEW 0
    """)


@pytest.mark.parametrize("case", NOT_GRANTED, ids=str)
def test_two_phase_commit_that_the_pure_coordinator_does_not_grant(case: Case) -> None:
    MachineSubject(2, two_phase_commit_enable=False).run(case)


def test_version_6_is_not_offered_unless_unstable_versions_are() -> None:
    """2.1: the connection is closed."""
    with ReferenceCoordinator(two_phase_commit=False) as server, RawClient(server.bootstrap) as client:
        find_coordinators(client)
        with pytest.raises(HungUpError):
            ask(client, Init(tid="unstable", version=6))
