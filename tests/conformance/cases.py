"""What a case is: a state that is given, requests, and the answers that Apache Kafka 4.4.0 gives to them.

Cases are texts, which `table` reads:

    2.1/ongoing-current-pair-again ONGOING tv=2:
        init CURRENT.7 -> CONCURRENT_TRANSACTIONS
        until describe -> CompleteAbort CURRENT 8 []
        init CURRENT.7 -> CURRENT 8
    2.1/epoch-alone: init NO_ID.3 -> INVALID_REQUEST

The first part of a name is the section of the specification whose row it shows. Behind the name stand the state that
the coordinator has loaded from its log, if any, with the fields of `Given`; ``new`` where an administrator has just
made the id, with the pair NEW.0; ``open`` where an old client has written a record in a transaction of CURRENT.7; the
levels of transaction.version where the answers are these (all unless said); and for cases of users their `Right`.
Each step is a request and its answer as `brief` writes it; ``admin`` says that not the user asks, and ``until`` to
ask again until it comes, because something happens by itself before. A line without an arrow goes on with the answer
before it. ``<commit|abort>`` makes a case of each alternative, ``{commit|abort}`` a step.

A request has a verb (`VERBS`), a pair of a producer id and an epoch, partitions, and fields. ``v4`` is the version of
the request, ``#5`` a sequence, ``x3`` a number of records; a word alone is a switch. Producer ids and places are names,
which each subject fills with its own: CURRENT is the producer id of the transactional id that is given and PREVIOUS the
one that it had before; NEW, NEWER and NEWEST are the first, second and third that the subject hands out; nobody has
UNKNOWN. ``OWN`` in an answer is the epoch of the coordinator that is asked. ``here0`` is a partition of the case alone,
``shared0`` one where only the coordinator's view matters, and no server has the topic of ``absent0``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from inspect import cleandoc
from typing import Any, Final, TypeAlias

from tests.conformance import operations as ops
from tests.conformance.leader_operations import (
    DeleteRecords,
    Fetch,
    FetchOffsets,
    ListOffsets,
    Marker,
    Markers,
    Produce,
    Producers,
    StateRecords,
    Write,
)

BROKEN_EPOCH: Final = 32767
#: Of transactions that are given: no test waits so long, and brokers allow it.
TIMEOUT_MS: Final = 600_000
ALL_LEVELS: Final = (0, 1, 2)

Places: TypeAlias = tuple[ops.Partition, ...]
#: The transactional id of a case, and its group; a subject puts something of its own in place of the sign.
TID, GROUP = "@T", "@G"
#: Topics that a subject puts in place of these. The partition of "@stuck" refuses the end marker of `Given.stuck`.
TOPICS: Final = ("@here", "@shared", "@stuck", "@compacted", "@mine", "@yours")
HERE, SHARED, STUCK = ("@here", 0), ("@shared", 0), ("@stuck", 0)


class Name(int):
    """A producer id that each subject fills in."""

    name: str

    def __new__(cls, name: str, number: int) -> Name:
        made = super().__new__(cls, number)
        made.name = name
        return made


#: In the order in which a subject hands them out.
NEW_NAMES: Final = ("NEW", "NEWER", "NEWEST")
#: Numbers that no server hands out.
NAMES: Final = {
    name: Name(name, -1001 - index) for index, name in enumerate(("CURRENT", "PREVIOUS", *NEW_NAMES, "UNKNOWN"))
}


class Right(Enum):
    """What a user may do: resource type, resource name and operation, by their numbers in CreateAcls."""

    WRITE_ID = (5, TID, 4)
    DESCRIBE_ID = (5, TID, 8)
    TWO_PHASE_COMMIT = (5, TID, 15)
    WRITE_TOPIC = (2, "@mine", 4)
    READ_TOPIC = (2, "@mine", 3)
    DESCRIBE_TOPIC = (2, "@mine", 8)
    READ_GROUP = (3, GROUP, 3)
    IDEMPOTENT_WRITE = (4, "kafka-cluster", 12)
    CLUSTER_ACTION = (4, "kafka-cluster", 9)
    ALTER_CLUSTER = (4, "kafka-cluster", 7)


@dataclass(frozen=True, kw_only=True)
class Given:
    """A transactional id as the coordinator has loaded it from its log.

    Args:
        previous: the producer id before, CURRENT or PREVIOUS.
        following: the producer id that it gets when it is completed, for a decided one whose epoch is used up.
        stuck: a decided transaction whose partition refuses the end marker, so that it stays as it is.
    """

    state: str
    epoch: int = 7
    previous: Name = NAMES["CURRENT"]
    timeout_ms: int = TIMEOUT_MS
    partitions: tuple[ops.Partition, ...] = (SHARED,)
    start_age_ms: int = 0
    update_age_ms: int = 0
    following: Name | None = None
    stuck: bool = False


@dataclass(frozen=True, kw_only=True)
class Step:
    """A request and its answer.

    Args:
        until: ask again until the answer comes.
        admin: an administrator asks, in place of the user whose rights the case names.
    """

    operation: ops.Operation
    expected: str
    until: bool = False
    admin: bool = False


@dataclass(frozen=True, kw_only=True)
class Case:
    """One row. ``levels``: of transaction.version where the answers are these. ``rights``: of the user who asks."""

    name: str
    steps: tuple[Step, ...]
    given: Given | None
    levels: tuple[int, ...]
    rights: tuple[Right, ...]

    def __str__(self) -> str:
        return self.name


_ALTERNATIVES: Final = re.compile(r"<([^<>]*\|[^<>]*)>")


def table(text: str, **words: str) -> list[Case]:
    """The cases of a text. ``words``: what stands for a word in angle brackets."""
    text = cleandoc(text)
    for word, stands_for in words.items():
        text = text.replace(f"<{word}>", stands_for)
    blocks: list[str] = []
    for line in text.splitlines():
        if line.startswith(" "):
            blocks[-1] += f"\n{line}"
        elif line and not line.startswith("#"):
            blocks.append(line)
    return [_case(each) for block in blocks for each in _alternatives(block)]


def _alternatives(text: str) -> Iterator[str]:
    for index in range(max((found.count("|") + 1 for found in _ALTERNATIVES.findall(text)), default=1)):
        yield _ALTERNATIVES.sub(lambda found, index=index: found[1].split("|")[index], text)  # type: ignore[misc]


_BEFORE: Final = {
    "new": "admin init -> NEW 0",
    "open": "add CURRENT.7 here0 -> OK\nproduce CURRENT.7 #0 v11 -> @0",
}


def _case(text: str) -> Case:
    head, _, rest = text.partition(":")
    name, *words = head.split()
    rights = tuple(Right[word] for word in words if word in Right.__members__)
    _, places, fields = _read(word for word in words if word not in Right.__members__)
    levels = tuple(map(int, fields.pop("tv", "012")))
    before = [steps for word, steps in _BEFORE.items() if fields.pop(word, False)]
    state = next((word for word in fields if word.isupper()), None)
    given = None
    if state is not None:
        del fields[state]
        fields |= {role: NAMES[fields[role]] for role in ("previous", "following") if role in fields}
        if fields.pop("nothing", False) or places:
            fields["partitions"] = places
        given = Given(state=state, **fields)
    steps = tuple(_steps("\n".join([*before, rest.strip()])))
    name = name.lower().replace("_", "-")
    return Case(name=name, steps=steps, given=given, levels=levels, rights=rights)


_EACH: Final = re.compile(r"\{([^{}]*\|[^{}]*)\}")


def _each(line: str) -> list[str]:
    found = _EACH.search(line)
    if found is None:
        return [line]
    return [one for word in found[1].split("|") for one in _each(line.replace(found[0], word, 1))]


def _steps(text: str) -> Iterator[Step]:
    lines: list[str] = []
    for line in text.strip().splitlines():
        if "->" in line:
            lines += _each(line.strip())
        else:
            lines[-1] += f"; {line.strip()}"
    for line in lines:
        request, _, expected = line.partition(" -> ")
        first, _, others = request.partition(" ")
        how = {first: True} if first in {"until", "admin"} else {}
        yield Step(operation=_operation(others if how else request), expected=expected, **how)


def _operation(request: str) -> ops.Operation:
    first, *also = (part.split() for part in request.split(" + "))
    pair, places, fields = _read(first[1:])
    if also:
        fields["also"] = list(map(_read, also))
    return VERBS[first[0]](pair, places, **fields)


#: Pair, places, fields.
Read: TypeAlias = tuple[ops.Pair, Places, dict[str, Any]]
_PAIR: Final = re.compile(rf"(NO_ID|{'|'.join(NAMES)})\.(-?\d+)")
_PLACE: Final = re.compile(r"([\w?-]+?)(\d+)")
#: What is written in front of a number in place of the field's name.
_SIGNS: Final = {"v": "version", "#": "sequence", "x": "count"}


def _read(words: Iterable[str]) -> Read:
    pair, places, fields = ops.NO_PAIR, [], {}
    for word in words:
        name, given, value = word.partition("=")
        if found := _PAIR.fullmatch(word):
            pair = NAMES.get(found[1], ops.NO_PAIR[0]), int(found[2])
        elif given:
            fields[name] = value if name == "tv" else _value(value)
        elif word[0] in _SIGNS and word[1:].isdecimal():
            fields[_SIGNS[word[0]]] = int(word[1:])
        elif found := _PLACE.fullmatch(word):
            places.append((f"@{found[1]}" if f"@{found[1]}" in TOPICS else found[1], int(found[2])))
        else:
            fields[word] = True
    return pair, tuple(places), fields


def _value(text: str) -> str | int | None:
    if text == "none":
        return None
    return int(text) if re.fullmatch(r"-?\d+", text) else text


# --- requests, with the usual values ---------------------------------------------------------------------------------


def _add(pair: ops.Pair, places: Places, *, nothing: bool = False, **fields: Any) -> ops.Add:
    """Of a client, of one shared partition unless others are given."""
    return ops.Add(**{"tid": TID, **fields}, pair=pair, partitions=() if nothing else places or (SHARED,))


def _verify(pair: ops.Pair, places: Places, **fields: Any) -> ops.Add:
    """Of a leader that only asks."""
    return _add(pair, places, **{"version": 5, **fields}, verify=True)


def _end(pair: ops.Pair, _: Places, **fields: Any) -> ops.End:
    return ops.End(**{"tid": TID, **fields}, pair=pair)


def _listed(
    _: ops.Pair, __: Places, *, states: str = "", producer_ids: str = "", **fields: Any
) -> ops.ListTransactions:
    """Of the ids of this case."""
    names = tuple(NAMES[each] for each in producer_ids.split(",") if each)
    return ops.ListTransactions(prefix="@", states=tuple(filter(None, states.split(","))), producer_ids=names, **fields)


def _produce(
    pair: ops.Pair,
    places: Places,
    *,
    also: Sequence[Read] = (),
    tid: str | None = TID,
    now_ms: int = 0,
    version: int = 12,
    transactional: bool = True,
    **fields: Any,
) -> Produce:
    writes = tuple(
        Write(pair=each, partition=at[0] if at else HERE, transactional=transactional, **rest)
        for each, at, rest in ((pair, places, fields), *also)
    )
    return Produce(tid=tid, writes=writes, now_ms=now_ms, version=version)


def _marker(
    pair: ops.Pair, places: Places, *, also: Sequence[Read] = (), version: int = 2, nothing: bool = False, **fields: Any
) -> Markers:
    """Of what a coordinator of epoch 0 has decided at transaction.version 0, unless others are given."""
    parts = () if nothing else ((pair, places, fields), *also)
    markers = (
        Marker(
            pair=each,
            commit="commit" in rest,
            partitions=at or (HERE,),
            coordinator_epoch=rest.get("coordinator", 0),
            transaction_version=rest.get("level", 0),
        )
        for each, at, rest in parts
    )
    return Markers(markers=tuple(markers), version=version)


def _read_log(_: ops.Pair, __: Places, *, offset: int = 0, committed: bool = False, uncommitted: bool = False) -> Fetch:
    assert committed is not uncommitted
    return Fetch(partition=HERE, offset=offset, committed=committed)


def _latest(
    _: ops.Pair, places: Places, *, timestamp_ms: int = -1, committed: bool = False, uncommitted: bool = False
) -> ListOffsets:
    assert committed is not uncommitted
    return ListOffsets(partition=places[0] if places else HERE, committed=committed, timestamp_ms=timestamp_ms)


def _commit_offset(pair: ops.Pair, places: Places, *, offset: int = 5, **fields: Any) -> ops.CommitOffsets:
    offsets = tuple((each, offset) for each in places or (SHARED,))
    return ops.CommitOffsets(**{"tid": TID, "group": GROUP, **fields}, pair=pair, offsets=offsets)


def _update(
    _: ops.Pair, __: Places, *, feature: str = "", level: int = 0, kind: int = 0, version: int = 2
) -> ops.UpdateFeatures:
    """Only a check."""
    return ops.UpdateFeatures(updates=((feature, level, kind),) if feature else (), version=version)


VERBS: Final[Mapping[str, Callable[..., ops.Operation]]] = {
    "init": lambda pair, _, **fields: ops.Init(**{"tid": TID, "timeout_ms": TIMEOUT_MS, **fields}, held=pair),
    "add": _add,
    "verify": _verify,
    "add_offsets": lambda pair, _, **fields: ops.AddOffsets(**{"tid": TID, "group": GROUP, **fields}, pair=pair),
    "commit": partial(_end, commit=True),
    "abort": partial(_end, commit=False),
    "describe": lambda _, __, tid=TID: ops.Describe(tid=tid),
    "listed": _listed,
    "produce": _produce,
    "plain": partial(_produce, transactional=False, tid=None),
    "marker": _marker,
    "producers": lambda _, places: Producers(partition=places[0] if places else HERE),
    "read": _read_log,
    "latest": _latest,
    "commit_offset": _commit_offset,
    "committed_offset": lambda _, __, **fields: FetchOffsets(group=GROUP, partitions=(SHARED,), **fields),
    "state_records": lambda _, __: StateRecords(tid=TID),
    "delete_records": lambda _, places, offset: DeleteRecords(partition=places[0], offset=offset),
    "update": _update,
}
