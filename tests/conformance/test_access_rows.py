"""What users without rights are answered: the first lines of sections 2.1 to 2.9 and 3.1.

The users of a case have the rights that it names, on its own transactional id, its own group, the topic ``mine`` and
the cluster; the topic ``yours`` is another's. Whatever must be there before is done by an administrator.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_2pc_sink.testing import CapabilityError, ReferenceCoordinator
from tests.conformance.access import AccessSubject, secured
from tests.conformance.cases import Case, table
from tests.conformance.machine import KNOWN, MachineSubject
from tests.conformance.operations import Init, ask
from tests.conformance.raw_client import HungUpError, RawClient
from tests.conformance.servers import find_coordinators
from tests.conformance.subjects import WIRE_SUBJECTS
from tests.conftest import _skip

CASES = table("""
    2.1/id:
        init {|UNKNOWN.-1|timeout_ms=0} -> TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    2.1/id-granted WRITE_ID:
        init -> NEW 0
        init v6 -> NEW 1
    2.1/two-phase WRITE_ID:
        init two_phase {|keep} v6 -> TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    2.1/two-phase-granted WRITE_ID TWO_PHASE_COMMIT:
        init two_phase v6 -> NEW 0
        init two_phase keep v6 -> UNSUPPORTED_VERSION
    2.1/no-id:
        init {|NO_ID.3} tid=none -> CLUSTER_AUTHORIZATION_FAILED
    2.1/no-id-idempotent-write IDEMPOTENT_WRITE: init tid=none -> NEW 0
    2.1/no-id-any-topic WRITE_TOPIC: init tid=none -> NEW 0
    2.2/id WRITE_TOPIC new: add NEW.0 mine0 {|yours0} -> TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    2.2/topic WRITE_ID new: add NEW.0 mine0 -> TOPIC_AUTHORIZATION_FAILED
    2.2/one-topic-of-two WRITE_ID WRITE_TOPIC new:
        add NEW.0 mine0 yours0 -> mine0: OPERATION_NOT_ATTEMPTED, yours0: TOPIC_AUTHORIZATION_FAILED
    2.2/granted WRITE_ID WRITE_TOPIC new: add NEW.0 mine0 -> OK
    2.2/leaders WRITE_ID WRITE_TOPIC new: add NEW.0 mine0 v5 -> CLUSTER_AUTHORIZATION_FAILED
    2.2/leaders-granted CLUSTER_ACTION new: add NEW.0 yours0 v5 -> OK
    2.2/offsets-id READ_GROUP new: add_offsets NEW.0 -> TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    2.2/offsets-group WRITE_ID new: add_offsets NEW.0 -> GROUP_AUTHORIZATION_FAILED
    2.2/offsets-granted WRITE_ID READ_GROUP new: add_offsets NEW.0 -> OK
    2.3/id WRITE_TOPIC new: {commit|abort} NEW.0 {v4|v5} -> TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    2.3/granted WRITE_ID new: commit NEW.0 v4 -> INVALID_TXN_STATE
    2.5/<id READ_GROUP READ_TOPIC|group WRITE_ID READ_TOPIC|topic WRITE_ID READ_GROUP> new:
        commit_offset NEW.0 mine0 -> <TRANSACTIONAL_ID|GROUP|TOPIC>_AUTHORIZATION_FAILED
    2.5/one-topic-of-two WRITE_ID READ_GROUP READ_TOPIC new:
        commit_offset NEW.0 mine0 yours0 offset=1 -> mine0: OK, yours0: TOPIC_AUTHORIZATION_FAILED
    2.6/cluster WRITE_ID WRITE_TOPIC: marker UNKNOWN.0 abort mine0 -> CLUSTER_AUTHORIZATION_FAILED
    2.6/cluster-action CLUSTER_ACTION: marker UNKNOWN.0 abort mine0 -> OK
    2.6/alter ALTER_CLUSTER: marker UNKNOWN.0 abort mine0 -> OK
    2.7/without-rights new: listed -> nothing
    2.7/some DESCRIBE_ID new:
        admin init tid=@U -> NEWER 0
        listed -> @T NEW Empty
    2.8/id new: describe {|tid=@U} -> TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    2.8/write-means-describe WRITE_ID new: describe -> Empty NEW 0 unstarted []
    2.8/topics DESCRIBE_ID DESCRIBE_TOPIC new:
        admin add NEW.0 mine0 yours0 -> OK
        describe -> Ongoing NEW 0 [mine0]
    2.9/topic DESCRIBE_TOPIC:
        producers {mine0|yours0} -> TOPIC_AUTHORIZATION_FAILED
    3.1/<id WRITE_TOPIC|topic WRITE_ID> new:
        produce NEW.0 #0 mine0 -> <TRANSACTIONAL_ID|TOPIC>_AUTHORIZATION_FAILED
    3.1/topic-of-a-plain-batch: plain UNKNOWN.5 #0 mine0 -> TOPIC_AUTHORIZATION_FAILED
    584/describe-is-not-enough CLUSTER_ACTION:
        update feature=transaction.version level=2 kind=1 -> CLUSTER_AUTHORIZATION_FAILED
            Request needs ALTER permission.
    584/alter ALTER_CLUSTER: update feature=transaction.version level=2 kind=1 -> OK
    """)


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
    "case", [each for each in CASES if all(type(step.operation) in KNOWN for step in each.steps)], ids=str
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
