"""What Kafka's open and newer pull requests answer, where they differ from 4.4.0: forms of KIP-939, and KAFKA-20785.

No released Kafka answers so: the pure coordinator and the reference coordinator are asked, with each form's settings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pytest

from spark_2pc_sink.codes import Code
from spark_2pc_sink.reference.coordinator.coordinator_state import Profile
from spark_2pc_sink.testing import ReferenceCoordinator
from tests.conformance.cases import (
    CURRENT,
    EPOCH_MAX,
    NEVER_MS,
    NEW,
    OK,
    SHARED,
    UNKNOWN,
    Case,
    Given,
    abort,
    add,
    case,
    commit,
    describe,
    granted,
    init,
    until,
)
from tests.conformance.machine import MachineSubject
from tests.conformance.operations import NO_PAIR, Init, Pair
from tests.conformance.subjects import PRIVILEGED, PROPERTIES, Subject, WireSubject


def keep(held: Pair = NO_PAIR, *, two_phase: bool = True) -> Init:
    """InitProducerId with keepPreparedTxn."""
    return init(held, keep=True, two_phase=two_phase, version=6)


def kept(pair: Any, transaction: Any) -> tuple[Any, ...]:
    """The pair to use next, and that of the transaction."""
    return *granted(pair), (transaction[0].name, transaction[1])


ENDLESS: Final = Given(state="ONGOING", timeout_ms=NEVER_MS)
OPEN: Final = f"Ongoing CURRENT 7 timeout={NEVER_MS} [shared0]"
STUCK: Final = tuple(Given(state=state, stuck=True) for state in ("PREPARE_COMMIT", "PREPARE_ABORT"))

#: Whatever keeping does.
EITHER: Final = (
    case("keep-finds-nothing", (keep(), granted(CURRENT.at(8))), given=Given(state="COMPLETE_COMMIT")),
    case("keep-of-a-new-id", (keep(), granted(NEW.at(0)))),
    *(case(f"keep-while-{given.state}", (keep(), Code.CONCURRENT_TRANSACTIONS), given=given) for given in STUCK),
    case("keep-by-another-producer", (keep(UNKNOWN.at(7)), Code.PRODUCER_FENCED), (describe(), OPEN), given=ENDLESS),
)
#: apache/kafka#21735.
BUMP: Final = (
    *EITHER,
    case(
        "keep-then-commit",
        (keep(), kept(CURRENT.at(8), CURRENT.at(7))),
        (describe(), OPEN),
        (commit(CURRENT.at(7)), Code.PRODUCER_FENCED),
        (add(CURRENT.at(8), SHARED[1]), Code.INVALID_TXN_STATE),
        (commit(CURRENT.at(8)), granted(CURRENT.at(9))),
        (commit(CURRENT.at(8)), granted(CURRENT.at(9))),
        given=ENDLESS,
    ),
    case(
        "keep-twice-then-abort",
        (keep(), kept(CURRENT.at(8), CURRENT.at(7))),
        (keep(), kept(CURRENT.at(9), CURRENT.at(7))),
        (abort(CURRENT.at(8)), Code.PRODUCER_FENCED),
        (abort(CURRENT.at(9)), granted(CURRENT.at(10))),
        given=ENDLESS,
    ),
    case(
        "keep-at-the-last-epoch",
        (keep(), kept(NEW.at(0), CURRENT.at(EPOCH_MAX))),
        (commit(CURRENT.at(EPOCH_MAX)), Code.INVALID_PRODUCER_ID_MAPPING),
        (commit(NEW.at(0)), granted(NEW.at(1))),
        given=Given(state="ONGOING", timeout_ms=NEVER_MS, epoch=EPOCH_MAX),
    ),
    case(
        "keep-without-two-phase-commit",
        (keep(two_phase=False), kept(CURRENT.at(8), CURRENT.at(7))),
        (describe(), "Ongoing CURRENT 7 [shared0]"),
        given=Given(state="ONGOING"),
    ),
)
#: apache/kafka#22704.
UNCHANGED: Final = (
    *EITHER,
    case(
        "keep-needs-two-phase-commit", (keep(two_phase=False), Code.INVALID_REQUEST), (describe(), OPEN), given=ENDLESS
    ),
    case(
        "keep-moves-nothing",
        (keep(), kept(CURRENT.at(7), CURRENT.at(7))),
        (keep(), kept(CURRENT.at(7), CURRENT.at(7))),
        (describe(), OPEN),
        (add(CURRENT.at(7), SHARED[1]), OK),
        (commit(CURRENT.at(7)), granted(CURRENT.at(8))),
        (commit(CURRENT.at(7)), granted(CURRENT.at(8))),
        given=ENDLESS,
    ),
    case(
        "keep-at-the-last-epoch",
        (keep(), kept(CURRENT.at(EPOCH_MAX), CURRENT.at(EPOCH_MAX))),
        (commit(CURRENT.at(EPOCH_MAX)), granted(NEW.at(0))),
        given=Given(state="ONGOING", timeout_ms=NEVER_MS, epoch=EPOCH_MAX),
    ),
    case(
        "keep-aborts-what-has-a-timeout",
        (keep(), Code.CONCURRENT_TRANSACTIONS),
        (describe(), "CompleteAbort CURRENT 8 []"),
        (keep(), granted(CURRENT.at(9))),
        given=Given(state="ONGOING"),
    ),
)
#: A level below the one that keeping needs.
TOO_LOW: Final = (
    case("keep-below-its-level", (keep(), Code.UNSUPPORTED_VERSION), (describe(), OPEN), given=ENDLESS),
    case("two-phase-commit-below-the-level", (init(two_phase=True, version=6), granted(NEW.at(0)))),
)
#: KAFKA-20785: EndTxn v5 in CompleteAbort; every other answer is that of `cases_end`.
LATE_COMMITS: Final = (
    case(
        "commit-after-a-timeout",
        until(describe(), "CompleteAbort CURRENT 8 timeout=1 []"),
        (commit(CURRENT.at(7)), Code.PRODUCER_FENCED),
        (commit(CURRENT.at(8)), Code.INVALID_TXN_STATE),
        (commit(CURRENT.at(6)), Code.PRODUCER_FENCED),
        (abort(CURRENT.at(7)), granted(CURRENT.at(8))),
        given=Given(state="ONGOING", timeout_ms=1),
    ),
    case(
        "commit-after-a-fence",
        (init(), Code.CONCURRENT_TRANSACTIONS),
        (commit(CURRENT.at(7)), Code.PRODUCER_FENCED),
        (init(), granted(CURRENT.at(9))),
        given=Given(state="ONGOING"),
    ),
    case(
        "commit-after-a-fence-of-the-last-epoch",
        (init(), Code.CONCURRENT_TRANSACTIONS),
        (commit(CURRENT.at(EPOCH_MAX)), Code.PRODUCER_FENCED),
        (abort(CURRENT.at(EPOCH_MAX)), granted(NEW.at(0))),
        given=Given(state="ONGOING", epoch=EPOCH_MAX),
    ),
    case(
        "abort-after-a-commit",
        (commit(CURRENT.at(7)), granted(CURRENT.at(8))),
        (abort(CURRENT.at(7)), Code.INVALID_TXN_STATE),
        given=Given(state="ONGOING"),
    ),
    case(
        "old-commit-after-an-abort",
        (abort(CURRENT.at(7), version=4), OK),
        (commit(CURRENT.at(7), version=4), Code.INVALID_TXN_STATE),
        given=Given(state="ONGOING"),
    ),
)


@dataclass(frozen=True, kw_only=True)
class Form:
    """A form, its settings, and its cases.

    Attributes:
        level: of transaction.version.
        settings: of the pure coordinator.
        properties: of the reference coordinator, to the same effect.
    """

    cases: tuple[Case, ...]
    level: int = 2
    settings: Mapping[str, Any] = field(default_factory=dict)
    properties: Mapping[str, str] = field(default_factory=dict)
    keeps: bool = True


_FORM, _VERSION = "transaction.keep.prepared.form", "transaction.keep.prepared.version"
FORMS: Final = {
    "bump": Form(cases=BUMP, settings={"profile": Profile.KEEP_PREPARED}),
    "unchanged": Form(cases=UNCHANGED, settings={"profile": Profile.KEEP_UNCHANGED}, properties={_FORM: "unchanged"}),
    "bump at 3": Form(
        cases=BUMP,
        level=3,
        settings={"profile": Profile.KEEP_PREPARED, "keep_prepared_version": 3},
        properties={_VERSION: "3"},
    ),
    "2, and 3 keeps": Form(
        cases=TOO_LOW,
        settings={"profile": Profile.KEEP_PREPARED, "keep_prepared_version": 3},
        properties={_VERSION: "3"},
        # Refused at the start, as it has no effect at this level: the pure coordinator alone shows the answer.
        keeps=False,
    ),
    "late commits": Form(
        cases=LATE_COMMITS,
        settings={"fences_late_commits": True},
        properties={"transaction.late.commit.fenced.enable": "true"},
        keeps=False,
    ),
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    chosen = [
        pytest.param((kind, name), each, id=f"{kind}-{name}-{each.name}")
        for kind in ("machine", "reference")
        for name, form in FORMS.items()
        for each in form.cases
    ]
    metafunc.parametrize(("subject", "case"), chosen, indirect=["subject"])


def _start(kind: str, form: Form) -> Subject:
    if kind == "machine":
        return MachineSubject(form.level, **form.settings)
    properties = {**PROPERTIES, **PRIVILEGED, **form.properties}
    server = ReferenceCoordinator(transaction_version=form.level, keep_prepared=form.keeps, properties=properties)
    cases = [Case(each.name, each.steps, each.given, (form.level,)) for each in form.cases]
    return WireSubject(server.__enter__(), form.level, cases)


@pytest.fixture(scope="module")
def started() -> Iterator[dict[tuple[str, str], Subject]]:
    """The subjects that run: one server for all cases of a form, in whatever order they come."""
    subjects: dict[tuple[str, str], Subject] = {}
    yield subjects
    for each in subjects.values():
        each.close()


@pytest.fixture
def subject(request: pytest.FixtureRequest, started: dict[tuple[str, str], Subject]) -> Subject:
    """Who is asked, with the settings of a form."""
    kind, name = request.param
    if request.param not in started:
        started[kind, name] = _start(kind, FORMS[name])
    return started[kind, name]


def test_row(subject: Subject, case: Case) -> None:
    subject.run(case)
