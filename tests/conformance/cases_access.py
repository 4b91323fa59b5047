"""What users without rights are answered: the first lines of sections 2.1 to 2.9 and 3.1.

The users of a case have the rights that it grants, on its own transactional id, its own group, the topic ``mine`` and
the cluster; the topic ``yours`` is another's. Whatever must be there before is done by an administrator.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from spark_2pc_sink.codes import Code
from tests.conformance.cases import (
    GROUP,
    NEW,
    NEWER,
    OK,
    OTHER_TID,
    TID,
    UNKNOWN,
    Exchange,
    abort,
    add,
    add_offsets,
    commit,
    commit_offset,
    describe,
    granted,
    idempotent,
    init,
    listed,
    marker,
    produce,
    producers,
)
from tests.conformance.cases_features import TV, UPGRADE, update
from tests.conformance.operations import CommitOffsets, Partition

MINE: Final[Partition] = ("@mine", 0)
YOURS: Final[Partition] = ("@yours", 0)


class Right(Enum):
    """Resource type, resource name and operation, by their numbers in CreateAcls."""

    WRITE_ID = (5, TID, 4)
    DESCRIBE_ID = (5, TID, 8)
    TWO_PHASE_COMMIT = (5, TID, 15)
    WRITE_TOPIC = (2, MINE[0], 4)
    READ_TOPIC = (2, MINE[0], 3)
    DESCRIBE_TOPIC = (2, MINE[0], 8)
    READ_GROUP = (3, GROUP, 3)
    IDEMPOTENT_WRITE = (4, "kafka-cluster", 12)
    CLUSTER_ACTION = (4, "kafka-cluster", 9)
    ALTER_CLUSTER = (4, "kafka-cluster", 7)


@dataclass(frozen=True)
class AccessCase:
    """One row.

    Args:
        rights: of the user who asks.
        before: what an administrator does first.
    """

    name: str
    rights: tuple[Right, ...]
    steps: tuple[Exchange, ...]
    before: tuple[Exchange, ...] = ()

    def __str__(self) -> str:
        return self.name


def _case(name: str, rights: tuple[Right, ...], *steps: Exchange, before: tuple[Exchange, ...] = ()) -> AccessCase:
    return AccessCase(name, rights, steps, before)


_ID, _TOPIC, _GROUP = Right.WRITE_ID, Right.WRITE_TOPIC, Right.READ_GROUP
_NEW: Final = (init(), granted(NEW.at(0)))
_NO_ALTER: Final[tuple[int, str, list[object]]] = (
    Code.CLUSTER_AUTHORIZATION_FAILED,
    "Request needs ALTER permission.",
    [],
)
_BOTH_OFFSETS: Final = CommitOffsets(tid=TID, pair=NEW.at(0), group=GROUP, offsets=((MINE, 1), (YOURS, 1)))

CASES: Final = (
    _case(
        "2.1/id",
        (),
        (init(), Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        (init(UNKNOWN.at(-1)), Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        (init(timeout_ms=0), Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
    ),
    _case("2.1/id-granted", (_ID,), _NEW, (init(version=6), granted(NEW.at(1)))),
    _case(
        "2.1/two-phase",
        (_ID,),
        (init(two_phase=True, version=6), Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        (init(two_phase=True, keep=True, version=6), Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
    ),
    _case(
        "2.1/two-phase-granted",
        (_ID, Right.TWO_PHASE_COMMIT),
        (init(two_phase=True, version=6), granted(NEW.at(0))),
        (init(two_phase=True, keep=True, version=6), Code.UNSUPPORTED_VERSION),
    ),
    _case(
        "2.1/no-id",
        (),
        (init(tid=None), Code.CLUSTER_AUTHORIZATION_FAILED),
        (init((-1, 3), tid=None), Code.CLUSTER_AUTHORIZATION_FAILED),
    ),
    _case("2.1/no-id-idempotent-write", (Right.IDEMPOTENT_WRITE,), (init(tid=None), granted(NEW.at(0)))),
    _case("2.1/no-id-any-topic", (_TOPIC,), (init(tid=None), granted(NEW.at(0)))),
    _case(
        "2.2/id",
        (_TOPIC,),
        (add(NEW.at(0), MINE), Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        (add(NEW.at(0), MINE, YOURS), Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        before=(_NEW,),
    ),
    _case("2.2/topic", (_ID,), (add(NEW.at(0), MINE), Code.TOPIC_AUTHORIZATION_FAILED), before=(_NEW,)),
    _case(
        "2.2/one-topic-of-two",
        (_ID, _TOPIC),
        (
            add(NEW.at(0), MINE, YOURS),
            {"mine0": Code.OPERATION_NOT_ATTEMPTED, "yours0": Code.TOPIC_AUTHORIZATION_FAILED},
        ),
        before=(_NEW,),
    ),
    _case("2.2/granted", (_ID, _TOPIC), (add(NEW.at(0), MINE), OK), before=(_NEW,)),
    _case(
        "2.2/leaders",
        (_ID, _TOPIC),
        (add(NEW.at(0), MINE, version=5), Code.CLUSTER_AUTHORIZATION_FAILED),
        before=(_NEW,),
    ),
    _case("2.2/leaders-granted", (Right.CLUSTER_ACTION,), (add(NEW.at(0), YOURS, version=5), OK), before=(_NEW,)),
    _case(
        "2.2/offsets-id",
        (_GROUP,),
        (add_offsets(NEW.at(0)), Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        before=(_NEW,),
    ),
    _case("2.2/offsets-group", (_ID,), (add_offsets(NEW.at(0)), Code.GROUP_AUTHORIZATION_FAILED), before=(_NEW,)),
    _case("2.2/offsets-granted", (_ID, _GROUP), (add_offsets(NEW.at(0)), OK), before=(_NEW,)),
    _case(
        "2.3/id",
        (_TOPIC,),
        (commit(NEW.at(0), version=4), Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        (abort(NEW.at(0)), Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        before=(_NEW,),
    ),
    _case("2.3/granted", (_ID,), (commit(NEW.at(0), version=4), Code.INVALID_TXN_STATE), before=(_NEW,)),
    _case(
        "2.5/id",
        (_GROUP, Right.READ_TOPIC),
        (commit_offset(NEW.at(0), partition=MINE), Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        before=(_NEW,),
    ),
    _case(
        "2.5/group",
        (_ID, Right.READ_TOPIC),
        (commit_offset(NEW.at(0), partition=MINE), Code.GROUP_AUTHORIZATION_FAILED),
        before=(_NEW,),
    ),
    _case(
        "2.5/topic",
        (_ID, _GROUP),
        (commit_offset(NEW.at(0), partition=MINE), Code.TOPIC_AUTHORIZATION_FAILED),
        before=(_NEW,),
    ),
    _case(
        "2.5/one-topic-of-two",
        (_ID, _GROUP, Right.READ_TOPIC),
        (_BOTH_OFFSETS, {"mine0": OK, "yours0": Code.TOPIC_AUTHORIZATION_FAILED}),
        before=(_NEW,),
    ),
    _case("2.6/cluster", (_ID, _TOPIC), (marker(UNKNOWN.at(0), "ABORT", MINE), Code.CLUSTER_AUTHORIZATION_FAILED)),
    _case("2.6/cluster-action", (Right.CLUSTER_ACTION,), (marker(UNKNOWN.at(0), "ABORT", MINE), OK)),
    _case("2.6/alter", (Right.ALTER_CLUSTER,), (marker(UNKNOWN.at(0), "ABORT", MINE), OK)),
    _case("2.7/without-rights", (), (listed(), (OK, [], [])), before=(_NEW,)),
    _case("584/describe-is-not-enough", (Right.CLUSTER_ACTION,), (update((TV, 2, UPGRADE)), _NO_ALTER)),
    _case("584/alter", (Right.ALTER_CLUSTER,), (update((TV, 2, UPGRADE)), (OK, None, []))),
    _case(
        "2.7/some",
        (Right.DESCRIBE_ID,),
        (listed(), (OK, [], [("@T", "NEW", "Empty")])),
        before=(_NEW, (init(tid=OTHER_TID), granted(NEWER.at(0)))),
    ),
    _case(
        "2.8/id",
        (),
        (describe(), Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        (describe(OTHER_TID), Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        before=(_NEW,),
    ),
    _case("2.8/write-means-describe", (_ID,), (describe(), "Empty NEW 0 unstarted []"), before=(_NEW,)),
    _case(
        "2.8/topics",
        (Right.DESCRIBE_ID, Right.DESCRIBE_TOPIC),
        (describe(), "Ongoing NEW 0 [mine0]"),
        before=(_NEW, (add(NEW.at(0), MINE, YOURS), OK)),
    ),
    _case(
        "2.9/topic",
        (Right.DESCRIBE_TOPIC,),
        (producers(MINE), Code.TOPIC_AUTHORIZATION_FAILED),
        (producers(YOURS), Code.TOPIC_AUTHORIZATION_FAILED),
    ),
    _case(
        "3.1/id",
        (_TOPIC,),
        (produce(NEW.at(0), sequence=0, partition=MINE), Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        before=(_NEW,),
    ),
    _case(
        "3.1/topic",
        (_ID,),
        (produce(NEW.at(0), sequence=0, partition=MINE), Code.TOPIC_AUTHORIZATION_FAILED),
        before=(_NEW,),
    ),
    _case(
        "3.1/topic-of-a-plain-batch",
        (),
        (idempotent(UNKNOWN.at(5), sequence=0, partition=MINE), Code.TOPIC_AUTHORIZATION_FAILED),
    ),
)
