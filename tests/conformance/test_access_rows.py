"""What users without rights are answered, row by row; and what a broker that grants nobody enable2Pc answers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_2pc_sink.testing import CapabilityError
from tests.conformance.access import AccessSubject, secured_kafka
from tests.conformance.cases import init
from tests.conformance.cases_access import CASES, AccessCase
from tests.conformance.operations import ask
from tests.conformance.raw_client import HungUpError, RawClient
from tests.conformance.servers import find_coordinators
from tests.conftest import StartKafka, _skip

pytestmark = [pytest.mark.kafka, pytest.mark.java]


@pytest.fixture(scope="module")
def secured(request: pytest.FixtureRequest) -> Iterator[AccessSubject]:
    try:
        with secured_kafka(len(CASES)) as (administrators, users):
            subject = AccessSubject(administrators, users, CASES)
            yield subject
            subject.close()
    except CapabilityError as error:
        _skip(request.config, str(error))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_row(secured: AccessSubject, case: AccessCase) -> None:
    secured.run(case)


def test_two_phase_commit_that_the_broker_does_not_grant(start_kafka: StartKafka) -> None:
    """2.1: refused before keepPreparedTxn and the timeout, after the empty id; without it nothing is amiss."""
    broker = start_kafka(properties={"unstable.api.versions.enable": "true"})
    with RawClient(broker.bootstrap) as client:
        find_coordinators(client)
        for request, code in (
            (init(tid="refused", two_phase=True, version=6), 53),
            (init(tid="refused", two_phase=True, keep=True, version=6), 53),
            (init(tid="refused", two_phase=True, timeout_ms=0, version=6), 53),
            (init(tid="refused", keep=True, version=6), 35),
            (init(tid="", two_phase=True, version=6), 42),
            (init(tid=None, two_phase=True, version=6), 0),
            (init(tid="granted", version=6), 0),
        ):
            assert ask(client, request)[0] == code, request


def test_version_6_is_not_offered_unless_unstable_versions_are(start_kafka: StartKafka) -> None:
    """2.1: the connection is closed."""
    broker = start_kafka()
    with RawClient(broker.bootstrap) as client:
        find_coordinators(client)
        with pytest.raises(HungUpError):
            ask(client, init(tid="unstable", version=6))
