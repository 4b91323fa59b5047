"""What users without rights are answered, row by row; and what a broker that grants nobody enable2Pc answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import TypeAlias

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
from tests.conftest import StartKafka, _skip

Starter: TypeAlias = Callable[[Mapping[str, str]], str]

_UNSTABLE = {"unstable.api.versions.enable": "true"}


@pytest.fixture(scope="module", params=WIRE_SUBJECTS)
def subject(request: pytest.FixtureRequest) -> Iterator[AccessSubject]:
    try:
        with secured(request.param, len(CASES)) as (administrators, users):
            made = AccessSubject(administrators, users, CASES)
            yield made
            made.close()
    except CapabilityError as error:
        _skip(request.config, str(error))


@pytest.fixture(params=WIRE_SUBJECTS)
def kind(request: pytest.FixtureRequest) -> str:
    """Who is asked."""
    kind: str = request.param
    return kind


@pytest.fixture
def start(request: pytest.FixtureRequest, kind: str) -> Iterator[Starter]:
    """Start a server of this kind that grants nobody enable2Pc."""
    with ExitStack() as stack:

        def started(properties: Mapping[str, str]) -> str:
            if kind == "reference":
                reference = ReferenceCoordinator(two_phase_commit=False, properties=properties)
                return stack.enter_context(reference).bootstrap
            start_kafka: StartKafka = request.getfixturevalue("start_kafka")
            return start_kafka(properties=properties).bootstrap

        yield started


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


def test_two_phase_commit_that_the_broker_does_not_grant(start: Starter) -> None:
    with RawClient(start(_UNSTABLE)) as client:
        find_coordinators(client)
        assert [ask(client, request)[0] for request, _ in NOT_GRANTED] == [code for _, code in NOT_GRANTED]


@pytest.mark.parametrize(("request_", "code"), NOT_GRANTED)
def test_two_phase_commit_that_the_pure_coordinator_does_not_grant(request_: Init, code: Code) -> None:
    answer = MachineSubject(2, two_phase_commit_enable=False).ask(request_)
    assert (answer[0] if isinstance(answer, tuple) else answer) == code


def test_version_6_is_not_offered_unless_unstable_versions_are(start: Starter) -> None:
    """2.1: the connection is closed."""
    with RawClient(start({})) as client:
        find_coordinators(client)
        with pytest.raises(HungUpError):
            ask(client, init(tid="unstable", version=6))
