"""What a case is: a state that is given, requests, and the answers that Apache Kafka 4.4.0 gives to them.

Cases are data. Producer ids and places are written by names, which each subject fills with its own: `CURRENT` is the
producer id of the transactional id that is given and `PREVIOUS` the one that it had before; `NEW`, `NEWER` and `NEWEST`
are the first, second and third that the subject hands out; nobody has `UNKNOWN`. ``CURRENT.at(7)`` is a pair: that
producer id at epoch 7. ``OWN`` in an answer is the epoch of the coordinator that is asked. `HERE` are partitions of
the case alone, `SHARED` are partitions where only the coordinator's view matters.

A step is a request and its answer: ``(init(CURRENT.at(7)), granted(CURRENT.at(8)))``,
``(add(CURRENT.at(6)), Code.PRODUCER_FENCED)``, ``(produce(NEW.at(0), sequence=0), written(0))``.

The first part of a case's name is the section of the specification whose row it shows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from spark_2pc_sink.codes import Code
from tests.conformance.leader_operations import (
    Fetch,
    FetchOffsets,
    ListOffsets,
    Marker,
    Markers,
    Produce,
    Producers,
    Write,
)
from tests.conformance.operations import (
    NO_PAIR,
    Add,
    AddOffsets,
    CommitOffsets,
    Describe,
    End,
    Init,
    ListTransactions,
    Operation,
    Pair,
    Partition,
)
from tests.conformance.state_records import StateRecords

EPOCH_MAX: Final = 32766
BROKEN_EPOCH: Final = 32767
NEVER_MS: Final = 2_147_483_647
DAY_MS: Final = 86_400_000
#: Of transactions that are given: no test waits so long, and brokers allow it.
TIMEOUT_MS: Final = 600_000
ALL_LEVELS: Final = (0, 1, 2)

#: The transactional id of a case, and others; a subject puts something of its own in place of the sign.
TID: Final = "@T"
OTHER_TID: Final = "@U"
GROUP: Final = "@G"
#: Topics that a subject puts in place of these.
HERE: Final = tuple(("@here", index) for index in range(3))
SHARED: Final = tuple(("@shared", index) for index in range(3))
#: A partition where the end marker of `Given.stuck` is refused.
STUCK: Final = ("@stuck", 0)
#: A partition whose topic has cleanup.policy=compact; no record of a client is ever written there.
COMPACTED: Final = ("@compacted", 0)
NO_TOPIC: Final = ("no-such-topic", 0)
INTERNAL: Final = ("__consumer_offsets", 0)


class Name(int):
    """A producer id that each subject fills in."""

    name: str

    def __new__(cls, name: str, number: int) -> Name:
        made = super().__new__(cls, number)
        made.name = name
        return made

    def at(self, epoch: int) -> Pair:
        """The pair of this producer id and an epoch."""
        return self, epoch


#: Numbers that no server hands out.
CURRENT, PREVIOUS, NEW, NEWER, NEWEST, UNKNOWN = (
    Name(name, -1001 - index) for index, name in enumerate(("CURRENT", "PREVIOUS", "NEW", "NEWER", "NEWEST", "UNKNOWN"))
)
#: In the order in which a subject hands them out.
NEW_NAMES: Final = ("NEW", "NEWER", "NEWEST")


@dataclass(frozen=True, kw_only=True)
class Given:
    """A transactional id as the coordinator has loaded it from its log.

    Args:
        previous: the producer id before, `CURRENT` or `PREVIOUS`.
        following: the producer id that it gets when it is completed, for a decided one whose epoch is used up.
        stuck: a decided transaction whose partition refuses the end marker, so that it stays as it is.
    """

    state: str
    epoch: int = 7
    previous: Name = CURRENT
    timeout_ms: int = TIMEOUT_MS
    partitions: tuple[Partition, ...] = (SHARED[0],)
    start_age_ms: int = 0
    update_age_ms: int = 0
    following: Name | None = None
    stuck: bool = False


EMPTY: Final = Given(state="EMPTY")
ONGOING: Final = Given(state="ONGOING")


@dataclass(frozen=True)
class Step:
    """A request and its answer, as `brief` writes it.

    Args:
        until: ask again until the answer comes: something happens by itself before.
    """

    operation: Operation
    expected: Any
    until: bool = False


@dataclass(frozen=True)
class Case:
    """One row.

    Args:
        levels: of transaction.version where the answers are these.
    """

    name: str
    steps: tuple[Step, ...]
    given: Given | None = None
    levels: tuple[int, ...] = ALL_LEVELS

    def __str__(self) -> str:
        return self.name


def word_of(state: str) -> str:
    """A state as names of cases have it."""
    return state.lower().replace("_", "-")


#: A request and its answer.
Exchange: TypeAlias = tuple[Any, Any]


def case(name: str, *steps: Exchange | Step, given: Given | None = None, levels: Iterable[int] = ALL_LEVELS) -> Case:
    """A case from pairs of request and answer."""
    made = tuple(step if isinstance(step, Step) else Step(*step) for step in steps)
    return Case(name, made, given, tuple(levels))


def until(operation: Operation, expected: Any) -> Step:
    """A step that is repeated until the answer comes."""
    return Step(operation, expected, until=True)


# --- answers ---------------------------------------------------------------------------------------------------------

OK: Final = Code.NONE


def granted(pair: Pair) -> tuple[int, str, int]:
    """InitProducerId or EndTxn hands out this pair."""
    producer, epoch = pair
    assert isinstance(producer, Name)
    return OK, producer.name, epoch


def written(offset: int) -> tuple[int, int]:
    """The batch of a Produce request begins at this offset."""
    return OK, offset


def written_before(offset: int) -> tuple[int, int, str]:
    """The batch is a duplicate of the one at this offset."""
    return OK, offset, "again"


def offset(value: int) -> tuple[int, int]:
    """ListOffsets answers this offset."""
    return OK, value


# --- requests, with the usual values ---------------------------------------------------------------------------------


def init(held: Pair = NO_PAIR, *, tid: str | None = TID, timeout_ms: int = TIMEOUT_MS, **fields: Any) -> Init:
    """InitProducerId."""
    return Init(tid=tid, held=held, timeout_ms=timeout_ms, **fields)


def add(pair: Pair, *partitions: Partition, tid: str = TID, **fields: Any) -> Add:
    """AddPartitionsToTxn of a client, of one shared partition unless others are given."""
    return Add(tid=tid, pair=pair, partitions=partitions or (SHARED[0],), **fields)


def add_nothing(pair: Pair) -> Add:
    """AddPartitionsToTxn of a client, with an empty list."""
    return Add(tid=TID, pair=pair, partitions=())


def verify(pair: Pair, *partitions: Partition, tid: str = TID, version: int = 5) -> Add:
    """AddPartitionsToTxn of a leader that only asks."""
    return Add(tid=tid, pair=pair, partitions=partitions or (SHARED[0],), verify=True, version=version)


def add_offsets(pair: Pair, *, tid: str = TID, group: str = GROUP, version: int = 3) -> AddOffsets:
    """AddOffsetsToTxn."""
    return AddOffsets(tid=tid, pair=pair, group=group, version=version)


def commit(pair: Pair, *, tid: str = TID, version: int = 5) -> End:
    """EndTxn."""
    return End(tid=tid, pair=pair, commit=True, version=version)


def abort(pair: Pair, *, tid: str = TID, version: int = 5) -> End:
    """EndTxn."""
    return End(tid=tid, pair=pair, commit=False, version=version)


def describe(tid: str = TID) -> Describe:
    """DescribeTransactions."""
    return Describe(tid=tid)


def listed(**fields: Any) -> ListTransactions:
    """ListTransactions, of the ids of this case."""
    return ListTransactions(prefix="@", **fields)


def produce(pair: Pair, sequence: int, *, version: int = 12, tid: str | None = TID, **fields: Any) -> Produce:
    """Produce of one batch."""
    usual: dict[str, Any] = {"partition": HERE[0], "pair": pair, "sequence": sequence}
    write = Write(**(usual | fields))
    return Produce(tid=tid if write.transactional else None, writes=(write,), now_ms=0, version=version)


def produce_all(*writes: Write, version: int = 12, tid: str | None = TID) -> Produce:
    """Produce of several batches."""
    return Produce(tid=tid, writes=writes, now_ms=0, version=version)


def idempotent(
    pair: Pair, sequence: int, *, count: int = 1, now_ms: int = 0, partition: Partition = HERE[0]
) -> Produce:
    """Produce of one batch that belongs to no transaction."""
    write = Write(partition=partition, pair=pair, sequence=sequence, count=count, transactional=False)
    return Produce(tid=None, writes=(write,), now_ms=now_ms)


def marker(
    pair: Pair, result: str, *partitions: Partition, level: int = 0, coordinator: int = 0, version: int = 2
) -> Markers:
    """WriteTxnMarkers of one transaction."""
    made = Marker(
        pair=pair,
        commit=result == "COMMIT",
        partitions=partitions or (HERE[0],),
        coordinator_epoch=coordinator,
        transaction_version=level,
    )
    return Markers(markers=(made,), version=version)


def producers(partition: Partition = HERE[0]) -> Producers:
    """DescribeProducers."""
    return Producers(partition=partition)


def read(isolation: str, offset: int = 0, partition: Partition = HERE[0]) -> Fetch:
    """Fetch."""
    return Fetch(partition=partition, offset=offset, committed=isolation == "committed")


def latest(isolation: str, partition: Partition = HERE[0]) -> ListOffsets:
    """ListOffsets."""
    return ListOffsets(partition=partition, committed=isolation == "committed")


def commit_offset(pair: Pair, offset: int = 5, *, group: str = GROUP, tid: str = TID, **fields: Any) -> CommitOffsets:
    """TxnOffsetCommit of one partition."""
    partition = fields.pop("partition", SHARED[0])
    return CommitOffsets(tid=tid, pair=pair, group=group, offsets=((partition, offset),), **fields)


def committed_offset(*, stable: bool = False, group: str = GROUP) -> FetchOffsets:
    """OffsetFetch."""
    return FetchOffsets(group=group, partitions=(SHARED[0],), stable=stable)


def state_records(tid: str = TID) -> StateRecords:
    """The records of ``__transaction_state``."""
    return StateRecords(tid=tid)
