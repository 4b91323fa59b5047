"""What Kafka's open and newer pull requests answer, where they differ from 4.4.0: forms of KIP-939, and KAFKA-20785.

No released Kafka answers so: the pure coordinator and the reference coordinator are asked, with each form's settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pytest

from spark_2pc_sink.reference.coordinator.states import Profile
from spark_2pc_sink.testing import ReferenceCoordinator
from tests.conformance.cases import Case, table
from tests.conformance.machine import MachineSubject
from tests.conformance.subjects import PRIVILEGED, PROPERTIES, Subject, WireSubject

WORDS: Final = {
    "keep": "init two_phase keep v6",
    "endless": "ONGOING timeout_ms=2147483647",
    "open": "Ongoing CURRENT 7 timeout=2147483647 [shared0]",
}
#: Whatever keeping does.
EITHER: Final = table(
    """
    keep-finds-nothing COMPLETE_COMMIT: <keep> -> CURRENT 8
    keep-of-a-new-id: <keep> -> NEW 0
    keep-while-<PREPARE_COMMIT|PREPARE_ABORT> <PREPARE_COMMIT|PREPARE_ABORT> stuck: <keep> -> CONCURRENT_TRANSACTIONS
    keep-by-another-producer <endless>:
        init UNKNOWN.7 two_phase keep v6 -> PRODUCER_FENCED
        describe -> <open>
    """,
    **WORDS,
)
#: apache/kafka#21735.
BUMP: Final = EITHER + table(
    """
    # An earlier recoverer must neither take over nor abort what the database may have decided to commit.
    keep-and-earlier-or-other-pairs <endless>:
        <keep> -> CURRENT 8 keeping CURRENT 7
        init {CURRENT.7|CURRENT.9|UNKNOWN.8} {v6|two_phase keep v6} -> PRODUCER_FENCED
        describe -> <open>
    keep-and-requests-of-old-clients <endless>:
        <keep> -> CURRENT 8 keeping CURRENT 7
        verify CURRENT.8 shared0 shared1 -> shared0: INVALID_TXN_STATE, shared1: TRANSACTION_ABORTABLE
        verify CURRENT.7 shared0 shared1 -> PRODUCER_FENCED
        verify UNKNOWN.8 shared0 shared1 -> INVALID_PRODUCER_ID_MAPPING
        {commit|abort} CURRENT.8 v4 -> INVALID_TXN_STATE
        {commit|abort} CURRENT.7 v4 -> PRODUCER_FENCED
        {commit|abort} UNKNOWN.8 v4 -> INVALID_PRODUCER_ID_MAPPING
        describe -> <open>
    keep-then-commit <endless>:
        <keep> -> CURRENT 8 keeping CURRENT 7
        describe -> <open>
        commit CURRENT.7 -> PRODUCER_FENCED
        add CURRENT.8 shared1 -> INVALID_TXN_STATE
        commit CURRENT.8 -> CURRENT 9
        commit CURRENT.8 -> CURRENT 9
    keep-twice-then-abort <endless>:
        <keep> -> CURRENT 8 keeping CURRENT 7
        <keep> -> CURRENT 9 keeping CURRENT 7
        abort CURRENT.8 -> PRODUCER_FENCED
        abort CURRENT.9 -> CURRENT 10
    keep-at-the-last-epoch <endless> epoch=32766:
        <keep> -> NEW 0 keeping CURRENT 32766
        commit CURRENT.32766 -> INVALID_PRODUCER_ID_MAPPING
        commit NEW.0 -> NEW 1
    keep-without-two-phase-commit ONGOING:
        init keep v6 -> CURRENT 8 keeping CURRENT 7
        describe -> Ongoing CURRENT 7 [shared0]
    """,
    **WORDS,
)
#: apache/kafka#22704.
UNCHANGED: Final = EITHER + table(
    """
    keep-needs-two-phase-commit <endless>:
        init keep v6 -> INVALID_REQUEST
        describe -> <open>
    keep-moves-nothing <endless>:
        <keep> -> CURRENT 7 keeping CURRENT 7
        <keep> -> CURRENT 7 keeping CURRENT 7
        describe -> <open>
        add CURRENT.7 shared1 -> OK
        commit CURRENT.7 -> CURRENT 8
        commit CURRENT.7 -> CURRENT 8
    keep-at-the-last-epoch <endless> epoch=32766:
        <keep> -> CURRENT 32766 keeping CURRENT 32766
        commit CURRENT.32766 -> NEW 0
    keep-aborts-what-has-a-timeout ONGOING:
        <keep> -> CONCURRENT_TRANSACTIONS
        describe -> CompleteAbort CURRENT 8 []
        <keep> -> CURRENT 9
    """,
    **WORDS,
)
#: A level below the one that keeping needs.
TOO_LOW: Final = table(
    """
    keep-below-its-level <endless>:
        <keep> -> UNSUPPORTED_VERSION
        describe -> <open>
    two-phase-commit-below-the-level: init two_phase v6 -> NEW 0
    """,
    **WORDS,
)
#: KAFKA-20785: EndTxn v5 in CompleteAbort; every other answer is that of `test_coordinator_rows`.
LATE_COMMITS: Final = table("""
    commit-after-a-timeout ONGOING timeout_ms=1:
        until describe -> CompleteAbort CURRENT 8 timeout=1 []
        commit CURRENT.7 -> PRODUCER_FENCED
        commit CURRENT.8 -> INVALID_TXN_STATE
        commit CURRENT.6 -> PRODUCER_FENCED
        abort CURRENT.7 -> CURRENT 8
    commit-after-a-fence ONGOING:
        init -> CONCURRENT_TRANSACTIONS
        commit CURRENT.7 -> PRODUCER_FENCED
        init -> CURRENT 9
    commit-after-a-fence-of-the-last-epoch ONGOING epoch=32766:
        init -> CONCURRENT_TRANSACTIONS
        commit CURRENT.32766 -> PRODUCER_FENCED
        abort CURRENT.32766 -> NEW 0
    abort-after-a-commit ONGOING:
        commit CURRENT.7 -> CURRENT 8
        abort CURRENT.7 -> INVALID_TXN_STATE
    old-commit-after-an-abort ONGOING:
        abort CURRENT.7 v4 -> OK
        commit CURRENT.7 v4 -> INVALID_TXN_STATE
    """)


@dataclass(frozen=True, kw_only=True)
class Form:
    """A form, its settings, and its cases.

    Attributes:
        level: of transaction.version.
        settings: of the pure coordinator.
        properties: of the reference coordinator, to the same effect.
    """

    cases: list[Case]
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


def start_subject(kind: str, name: str) -> Subject:
    """One for all cases of a form."""
    form = FORMS[name]
    if kind == "machine":
        return MachineSubject(form.level, **form.settings)
    properties = {**PROPERTIES, **PRIVILEGED, **form.properties}
    server = ReferenceCoordinator(transaction_version=form.level, keep_prepared=form.keeps, properties=properties)
    cases = [replace(each, levels=(form.level,)) for each in form.cases]
    return WireSubject(server.__enter__(), form.level, cases)


def test_row(subject: Subject, case: Case) -> None:
    subject.run(case)
