"""Who is asked: a server over TCP, prepared with the states that cases are given, or the pure coordinator."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import pytest

from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.reference.config.properties import STANDARD_AUTHORIZER
from spark_2pc_sink.reference.coordinator.plans import LogRecord
from spark_2pc_sink.reference.coordinator.states import StateId, TransactionMetadata
from spark_2pc_sink.testing import wait_until
from tests.conformance.answers import Names, brief, walk
from tests.conformance.cases import ALL_LEVELS, BROKEN_EPOCH, HERE, STUCK, Case, Given, Step
from tests.conformance.leader_operations import Marker, Markers, Produce, Write
from tests.conformance.operations import Describe, Operation, Partition, ask, is_decided
from tests.conformance.raw_client import RawClient
from tests.conformance.servers import coordinator_epoch, find_coordinators, make_topics
from tests.harness.providers import Broker
from tests.unit.reference.batches import client_batch

#: Intervals short enough that nobody waits; nothing else than the cases meant runs into them.
PROPERTIES: Final = {
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "100",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "100",
    "producer.id.expiration.check.interval.ms": "100",
}
#: The reference coordinator goes by the principal too when it is asked to take records of its own logs from a client.
PRIVILEGED: Final = {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:ANONYMOUS"}
#: Producer ids of given transactions: far from those that a fresh server hands out.
_FIRST_GIVEN_ID: Final = 5_000_000
_SHARED_PARTITIONS: Final = 3
_TRANSACTION_LOG: Final[Partition] = ("__transaction_state", 0)
#: Kafka lets whoever has this client id write to its internal topics.
_ADMIN_CLIENT: Final = "__admin_client"


class Subject(Protocol):
    """Answers the requests of a case."""

    def run(self, case: Case) -> None:
        """Carry out the steps, and fail at the first answer that is another than the case says."""

    def close(self) -> None:
        """End it."""


def check(step: Step, case: Case, index: int, answer: str) -> None:
    assert answer == step.expected, f"{case.name}, step {index + 1}: {step.operation}"


def given_ids(index: int) -> dict[str, int]:
    return {"CURRENT": _FIRST_GIVEN_ID + 10 * index, "PREVIOUS": _FIRST_GIVEN_ID + 10 * index + 1}


def places_of(case: Case) -> int:
    """How many partitions of its own a case uses."""
    used = [0]

    def look(value: Any) -> None:
        if isinstance(value, tuple) and len(value) == 2 and value[0] == HERE[0]:
            used.append(value[1] + 1)

    walk((tuple(step.operation for step in case.steps), case.given), look)
    return max(used)


def metadata_of(given: Given, tid: str, names: Names, *, level: int, now_ms: int) -> TransactionMetadata:
    state = StateId[given.state]
    running = state in {StateId.ONGOING, StateId.PREPARE_COMMIT, StateId.PREPARE_ABORT}
    wanted = (STUCK,) if given.stuck else given.partitions
    places = frozenset(TopicPartition(*names.partition(each)) for each in wanted) if running else frozenset()
    return TransactionMetadata(
        transactional_id=tid,
        producer_id=names.producer_ids["CURRENT"],
        producer_epoch=given.epoch,
        timeout_ms=given.timeout_ms,
        state=state,
        last_update_ms=now_ms - given.update_age_ms,
        previous_producer_id=names.producer_ids[given.previous.name],
        next_producer_id=-1 if given.following is None else names.producer_ids[given.following.name],
        partitions=places,
        start_ms=-1 if state is StateId.EMPTY else now_ms - given.start_age_ms,
        client_transaction_version=2 if level >= 2 else 0,
    )


@dataclass(frozen=True)
class _Prepared:
    """A case with its place on the server. ``here``: index of the first partition of its own."""

    index: int
    here: int

    def names(self, coordinator_epoch: int = 0) -> Names:
        topics = {
            "@here": ("here", self.here),
            "@shared": ("shared", 0),
            "@stuck": ("stuck", 0),
            "@compacted": ("compacted", 0),
        }
        return Names(f"case{self.index}-", topics, given_ids(self.index), _now_ms(), coordinator_epoch)


class WireSubject:
    """A server that was started for the cases.

    Everything that the cases are given is written to the transaction log as records, and the server loads it when it
    starts again: so every state is reached in one step, and the format of the records is tried on the way.

    Args:
        broker: runs, and is this subject's own.
        cases: all that it will be asked.
    """

    def __init__(self, broker: Broker, level: int, cases: Sequence[Case]) -> None:
        self._broker = broker
        self._level = level
        self._prepared: dict[str, _Prepared] = {}
        own = [each for each in cases if level in each.levels]
        here = 0
        for index, each in enumerate(own):
            self._prepared[each.name] = _Prepared(index, here)
            here += places_of(each)
        with RawClient(broker.bootstrap, client_id=_ADMIN_CLIENT) as client:
            make_topics(client, {"here": max(1, here), "shared": _SHARED_PARTITIONS, "stuck": 1})
            make_topics(client, {"compacted": 1}, configs={"cleanup.policy": "compact"})
            find_coordinators(client)
            self._give(client, own)
        broker.restart()
        self._client = RawClient(broker.bootstrap)
        find_coordinators(self._client)
        self._coordinator_epoch = coordinator_epoch(self._client, ("shared", 0))

    def run(self, case: Case) -> None:
        prepared = self._prepared[case.name]
        names = prepared.names(self._coordinator_epoch)
        for index, step in enumerate(case.steps):
            if case.given is None or not case.given.stuck:
                self._settle(names.fill(step.operation))
            answer = self._ask(step.operation, names)
            if step.until and answer != step.expected:
                wait_until(
                    lambda step=step: self._ask(step.operation, names) == step.expected,  # type: ignore[misc]
                    what=f"{case.name}, step {index + 1}: the answer {step.expected}, not {answer}",
                )
                continue
            check(step, case, index, answer)

    def close(self) -> None:
        self._client.close()
        self._broker.close()

    def _ask(self, operation: Operation, names: Names) -> str:
        return brief(operation, names.name(ask(self._client, names.fill(operation))))

    def _settle(self, operation: Operation) -> None:
        """Wait until the end markers of the transaction before are written, where it ends one."""
        tid = getattr(operation, "tid", None)
        if not tid:
            return
        wait_until(lambda: not is_decided(ask(self._client, Describe(tid=tid))), what=f"{tid} has all its end markers")

    def _give(self, client: RawClient, cases: Sequence[Case]) -> None:
        """Write what the cases are given to the transaction log."""
        now_ms, version = _now_ms(), min(self._level, 1)
        records, blocked = [], []
        for each in cases:
            if each.given is None:
                continue
            names = self._prepared[each.name].names()
            known = metadata_of(each.given, names.mark + "T", names, level=self._level, now_ms=now_ms)
            records.append(
                LogRecord(partition=0, transactional_id=known.transactional_id, value=known, version=version)
            )
            if each.given.stuck:
                # An epoch so high that its partition refuses every later marker.
                pair = names.producer_ids["CURRENT"], BROKEN_EPOCH
                blocked.append(Marker(pair=pair, commit=False, partitions=(names.partition(STUCK),)))
        assert set(ask(client, Markers(markers=tuple(blocked))).values()) <= {0}
        values, keys = [each.value_bytes for each in records], [each.key_bytes for each in records]
        write = Write(
            partition=_TRANSACTION_LOG,
            records=client_batch(values, keys=keys, timestamps_ms=now_ms),
            transactional=False,
        )
        code = ask(client, Produce(tid=None, writes=(write,), now_ms=now_ms, version=9))[_TRANSACTION_LOG][0]
        assert code == 0, f"the transaction log answers {code}"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


# --- which case is asked of whom ------------------------------------------------------------------------------------

SUBJECTS = ("machine", "reference", "kafka")
_KAFKA = [pytest.mark.kafka, pytest.mark.java]
#: Those that are servers, as parameters. What Kafka answers is written down, and no change here changes it.
WIRE_SUBJECTS = ["reference", pytest.param("kafka", marks=[*_KAFKA, pytest.mark.thorough])]

_STUCK = "transaction.version 0: Kafka fails half-way and leaves the id pending until it is loaded again"
#: Where a subject answers otherwise than Kafka on purpose, by subject, transaction.version and case.
DEPARTURES = {
    ("machine", 0, "1.4/new-abort-on-an-old-log"): _STUCK,
    ("reference", 0, "1.4/new-abort-on-an-old-log"): _STUCK,
}


def _marks(subject: str, level: int, case: Case) -> list[pytest.MarkDecorator]:
    marks = [*_KAFKA, pytest.mark.slow if level == 2 else pytest.mark.thorough] if subject == "kafka" else []
    # At level 1 servers answer as at level 0 or as at level 2, but for what has a say at that level alone.
    if level == 1 and subject == "reference" and len(case.levels) > 1:
        marks.append(pytest.mark.thorough)
    departure = DEPARTURES.get((subject, level, case.name))
    return marks if departure is None else [*marks, pytest.mark.xfail(strict=True, reason=departure)]


def parametrize(metafunc: pytest.Metafunc, cases: Sequence[Case], *, with_machine: bool = False) -> None:
    """Run a test with each case and each subject at each transaction.version where the case has its say."""
    chosen = [
        pytest.param((subject, level), each, marks=_marks(subject, level, each), id=f"{subject}-tv{level}-{each.name}")
        for subject in SUBJECTS
        if with_machine or subject != "machine"
        for level in ALL_LEVELS
        for each in cases
        if level in each.levels
    ]
    metafunc.parametrize(("subject", "case"), chosen, indirect=["subject"])
