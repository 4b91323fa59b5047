"""Answers as cases write them: names in place of a server's numbers, and few words.

`Names` fills the names of a case in and puts them back into the answers. `brief` shortens an answer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from tests.conformance.cases import NEW_NAMES, Name
from tests.conformance.leader_operations import Fetch, FetchOffsets, ListOffsets, Markers, Produce, Producers
from tests.conformance.operations import (
    Add,
    CommitOffsets,
    CoordinatorEpoch,
    Describe,
    End,
    Init,
    Operation,
    Partition,
    ProducerId,
)
from tests.conformance.state_records import StateRecords

T = TypeVar("T")

#: A producer id that no server gives out.
UNKNOWN_PRODUCER_ID: Final = 7_777_777_777
#: What `brief` leaves away: the timeout that everything in these tests has.
_USUAL_TIMEOUT_MS = 600_000


def walk(value: Any, leaf: Callable[[Any], Any]) -> Any:
    """The value with every part for which ``leaf`` has something else replaced by that; None is nothing else."""
    other = leaf(value)
    if other is not None:
        return other
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {each.name: walk(getattr(value, each.name), leaf) for each in dataclasses.fields(value)}
        return dataclasses.replace(value, **fields)
    if isinstance(value, tuple):
        return tuple(walk(each, leaf) for each in value)
    if isinstance(value, list):
        return [walk(each, leaf) for each in value]
    if isinstance(value, Mapping):
        return {walk(key, leaf): walk(each, leaf) for key, each in value.items()}
    return value


@dataclass
class Names:
    """What the names of one case stand for on one server.

    Args:
        mark: put in place of the sign in transactional ids and groups; unique on the server.
        topics: for ``@here`` and its like: the topic, and the index of the first partition.
        now_ms: timestamp of what is produced.
        coordinator_epoch: which answers name ``OWN``.
    """

    mark: str
    topics: Mapping[str, Partition]
    producer_ids: dict[str, int]
    now_ms: int = 0
    coordinator_epoch: int = 0
    _new: list[str] = field(default_factory=lambda: list(NEW_NAMES))

    def fill(self, operation: Operation) -> Any:
        """The operation with everything that it names filled in."""
        filled = walk(operation, self._fill)
        late = getattr(filled, "now_ms", None)
        # A negative time is an age.
        return filled if late is None else dataclasses.replace(filled, now_ms=self.now_ms + late)

    def partition(self, partition: Partition) -> Partition:
        """A partition of a case on the server."""
        filled: Partition = walk(partition, self._fill)
        return filled

    def name(self, result: T) -> T:
        """An answer with names in place of what this server chose; ids seen for the first time get the next name."""
        named: T = walk(result, self._name)
        return named

    def _fill(self, value: Any) -> Any:
        if isinstance(value, Name):
            return self.producer_ids.get(value.name, UNKNOWN_PRODUCER_ID)
        if _is_partition(value) and value[0] in self.topics:
            topic, first = self.topics[value[0]]
            return topic, first + value[1]
        if isinstance(value, str) and value.startswith("@"):
            return self.mark + value[1:]
        return None

    def _name(self, value: Any) -> Any:
        if isinstance(value, ProducerId):
            return self._producer(int(value)) if value >= 0 else int(value)
        if isinstance(value, CoordinatorEpoch):
            return "OWN" if value == self.coordinator_epoch else int(value)
        if _is_partition(value):
            for sign, (topic, first) in self.topics.items():
                if topic == value[0] and value[1] >= first:
                    return f"{sign[1:]}{value[1] - first}"
        if isinstance(value, str) and value.startswith(self.mark):
            return "@" + value.removeprefix(self.mark)
        return None

    def _producer(self, number: int) -> str:
        for name, known in self.producer_ids.items():
            if known == number:
                return name
        self.producer_ids[self._new[0]] = number
        return self._new.pop(0)


def _is_partition(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str) and isinstance(value[1], int)


# --- few words -------------------------------------------------------------------------------------------------------


def brief(operation: Operation, result: Any) -> Any:
    """The answer in few words; producer ids and places are named already.

    - one code, where it is all there is, or where it is the same for everything that was asked for;
    - ``(0, "CURRENT", 8)`` for a pair, ``(0, 12)`` for an offset;
    - a line of text for a description.
    """
    function = _BRIEF.get(type(operation))
    return result if function is None else function(result)


def _pair(result: Any) -> Any:
    if not isinstance(result, tuple):
        return result
    return result[0] if result[0] and result[1:] == (-1, -1) else result


def _same(result: Any) -> Any:
    if not isinstance(result, Mapping):
        return result
    values = list(result.values())
    return values[0] if values and all(value == values[0] for value in values) else result


def _produced(result: Mapping[Any, tuple[int, int, bool, bool, tuple[Any, ...], str | None]]) -> Any:
    return _same({place: _written(*each) for place, each in result.items()})


def _written(code: int, offset: int, stamped: bool, started: bool, errors: tuple[Any, ...], message: str | None) -> Any:
    """A duplicate is told by its time: where clients give times, only what was there before has one."""
    if message is not None:
        return (code, message, *errors)
    if code:
        return code if offset == -1 and not stamped else (code, offset)
    assert started
    return (code, offset, "again") if stamped else (code, offset)


def _described(result: Any) -> Any:
    if not isinstance(result, tuple):
        return result
    state, producer, epoch, timeout_ms, started, partitions = result
    notes = ["" if timeout_ms == _USUAL_TIMEOUT_MS else f" timeout={timeout_ms}", "" if started else " unstarted"]
    return f"{state} {producer} {epoch}{notes[0]}{notes[1]} {partitions}".replace("'", "")


def _producers(result: Any) -> Any:
    if not isinstance(result, list):
        return result
    return [
        f"{producer} {epoch} sequence={sequence} coordinator={coordinator} open={start}"
        for producer, epoch, sequence, coordinator, start in result
    ]


def _fetched(result: Any) -> Any:
    if len(result) == 1:
        return result[0]
    _, high_watermark, stable, aborted, batches = result
    listed = None if aborted is None else [f"{producer}@{start}" for producer, start in aborted]
    lines = []
    for first, last, producer, epoch, sequence, transactional, marker, coordinator, _ in batches:
        place = f"@{first}" if first == last else f"@{first}-{last}"
        what = f"{marker}/{coordinator}" if marker else f"#{sequence}{'' if transactional else ' plain'}"
        lines.append(f"{producer} {epoch} {what}{place}")
    return f"high={high_watermark} stable={stable} aborted={listed}".replace("'", ""), lines


def _state_records(result: Any) -> Any:
    if not isinstance(result, list):
        return result
    return [each if each is None else _state_record(*each) for each in result]


def _state_record(version: int, state: str, producer: str, epoch: int, *rest: Any) -> str:
    timeout_ms, started, partitions, tags = rest
    notes = ["" if timeout_ms == _USUAL_TIMEOUT_MS else f" timeout={timeout_ms}", "" if started else " unstarted"]
    return f"v{version} {state} {producer} {epoch}{notes[0]}{notes[1]} {partitions} {tags}".replace("'", "")


_BRIEF: dict[type, Callable[[Any], Any]] = {
    Init: _pair,
    End: _pair,
    Add: _same,
    CommitOffsets: _same,
    FetchOffsets: _same,
    Markers: _same,
    Produce: _produced,
    Describe: _described,
    Producers: _producers,
    StateRecords: _state_records,
    Fetch: _fetched,
    ListOffsets: lambda result: result if result[0] == 0 else result[0],
}
