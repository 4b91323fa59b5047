"""What users without rights are answered, row by row; and what a broker that grants nobody enable2Pc answers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_2pc_sink.codes import Code
from spark_2pc_sink.testing import CapabilityError, ReferenceCoordinator
from tests.conformance.access import AccessSubject, secured
from tests.conformance.cases import OK, init
from tests.conformance.cases_access import CASES, AccessCase
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
def test_row(subject: AccessSubject, case: AccessCase) -> None:
    subject.run(case)


@pytest.mark.parametrize(
    "case", [each for each in CASES if all(type(asked) in EVENTS for asked, _ in (*each.before, *each.steps))], ids=str
)
def test_row_of_the_pure_coordinator(case: AccessCase) -> None:
    MachineSubject(2).run_as_user(case)


#: 2.1: refused before keepPreparedTxn and the timeout, after the empty id; without it nothing is amiss.
NOT_GRANTED = (
    (init(tid="refused", two_phase=True, version=6), Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
    (init(tid="refused", two_phase=True, keep=True, version=6), Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
    (init(tid="refused", two_phase=True, timeout_ms=0, version=6), Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
    (init(tid="refused", keep=True, version=6), Code.UNSUPPORTED_VERSION),
    (init(tid="", two_phase=True, version=6), Code.INVALID_REQUEST),
    (init(tid=None, two_phase=True, version=6), OK),
    (init(tid="granted", version=6), OK),
)


@pytest.mark.parametrize(("request_", "code"), NOT_GRANTED)
def test_two_phase_commit_that_the_pure_coordinator_does_not_grant(request_: Init, code: Code) -> None:
    answer = MachineSubject(2, two_phase_commit_enable=False).ask(request_)
    assert (answer[0] if isinstance(answer, tuple) else answer) == code


def test_version_6_is_not_offered_unless_unstable_versions_are() -> None:
    """2.1: the connection is closed."""
    with ReferenceCoordinator(two_phase_commit=False) as server, RawClient(server.bootstrap) as client:
        find_coordinators(client)
        with pytest.raises(HungUpError):
            ask(client, init(tid="unstable", version=6))
