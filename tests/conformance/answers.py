"""Answers as cases write them: names in place of a server's numbers, and few words.

`Names` fills the names of a case in and puts them back into the answers. `brief` shortens an answer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from spark_2pc_sink.wire.messages import describe_error
from tests.conformance import operations as ops
from tests.conformance.cases import NEW_NAMES, TIMEOUT_MS, Name
from tests.conformance.leader_operations import (
    DeleteRecords,
    Fetch,
    FetchOffsets,
    ListOffsets,
    Markers,
    Produce,
    Producers,
    StateRecords,
)

T = TypeVar("T")

#: A producer id that no server gives out.
UNKNOWN_PRODUCER_ID: Final = 7_777_777_777


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
    topics: Mapping[str, ops.Partition]
    producer_ids: dict[str, int]
    now_ms: int = 0
    coordinator_epoch: int = 0
    _new: list[str] = field(default_factory=lambda: list(NEW_NAMES))

    def fill(self, operation: ops.Operation) -> Any:
        filled = walk(operation, self._fill)
        late = getattr(filled, "now_ms", None)
        # A negative time is an age.
        return filled if late is None else dataclasses.replace(filled, now_ms=self.now_ms + late)

    def partition(self, partition: ops.Partition) -> ops.Partition:
        filled: ops.Partition = walk(partition, self._fill)
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
        if isinstance(value, ops.ProducerId):
            return self._producer(int(value)) if value >= 0 else int(value)
        if isinstance(value, ops.CoordinatorEpoch):
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


def brief(operation: ops.Operation, result: Any) -> str:
    """The answer as cases write it; producer ids and places are named already.

    - the name of one code, where it is all there is, or where it is the same for everything that was asked for;
    - ``CURRENT 8`` for a pair, ``@12`` for an offset, ``@12 again`` for a batch that was there before;
    - a line for a description, and several behind each other with semicolons between them.
    """
    return _BRIEF[type(operation)](result)


def _code(code: int) -> str:
    return describe_error(code).name if code else "OK"


def _lines(lines: Iterable[str], none: str) -> str:
    return "; ".join(lines) or none


def _pair(result: Any) -> str:
    if not isinstance(result, tuple):
        return _code(result)
    code, producer, epoch, *kept = result
    if code and (producer, epoch) == (-1, -1):
        return _code(code)
    words = [*([_code(code)] if code else []), producer, epoch, *(("keeping", *kept[0]) if kept else ())]
    return " ".join(map(str, words))


def _by_place(show: Callable[[Any], str]) -> Callable[[Any], str]:
    def by_place(result: Any) -> str:
        if not isinstance(result, Mapping):
            return _code(result)
        shown = {_place(place): show(value) for place, value in result.items()}
        if len(set(shown.values())) == 1:
            return next(iter(shown.values()))
        return ", ".join(f"{place}: {value}" for place, value in sorted(shown.items())) or "nothing"

    return by_place


def _place(place: Any) -> str:
    """One that is not a name is a partition, or a producer with the partition of its marker."""
    if isinstance(place, str):
        return place
    return f"{place[0]}{place[1]}" if isinstance(place[1], int) else f"{place[0]} {_place(place[1])}"


def _at(result: tuple[int, int]) -> str:
    code, offset = result
    if code and offset == -1:
        return _code(code)
    return f"{_code(code)} @{offset}" if code else f"@{offset}"


def _written(result: tuple[int, int, bool, bool, tuple[Any, ...], str | None]) -> str:
    """A duplicate is told by its time: where clients give times, only what was there before has one."""
    code, offset, stamped, started, errors, message = result
    if message is not None:
        return "; ".join([_code(code), message, *(f"{index} {text}" for index, text in errors)])
    assert code or started
    return f"{_at((code, offset))}{' again' if stamped else ''}"


def _described(result: Any) -> str:
    if not isinstance(result, tuple):
        return _code(result)
    state, producer, epoch, timeout_ms, started, partitions = result
    return f"{state} {producer} {epoch}{_notes(timeout_ms, started)} {partitions}".replace("'", "")


def _notes(timeout_ms: int, started: bool) -> str:
    notes = "" if timeout_ms == TIMEOUT_MS else f" timeout={timeout_ms}"
    return notes if started else f"{notes} unstarted"


def _listed(result: tuple[int, list[str], list[tuple[str, str, str]]]) -> str:
    code, unknown, rows = result
    lines = [*([_code(code)] if code else []), *(f"unknown {each}" for each in unknown), *map(" ".join, rows)]
    return _lines(lines, "nothing")


def _updated(result: tuple[int, str | None, list[tuple[str, int, str]]]) -> str:
    code, message, results = result
    rows = (f"{feature} {_code(each)} {text}" for feature, each, text in results)
    return "; ".join([_code(code), *([message] if message else []), *rows])


def _producers(result: Any) -> str:
    if not isinstance(result, list):
        return _code(result)
    lines = (
        f"{producer} {epoch} sequence={sequence} coordinator={coordinator} open={start}"
        for producer, epoch, sequence, coordinator, start in result
    )
    return _lines(lines, "nobody")


def _fetched(result: Any) -> str:
    if len(result) == 1:
        return _code(result[0])
    _, high_watermark, stable, aborted, batches = result
    listed = None if aborted is None else [f"{producer}@{start}" for producer, start in aborted]
    lines = [f"high={high_watermark} stable={stable} aborted={listed}".replace("'", "")]
    for first, last, producer, epoch, sequence, transactional, marker, coordinator, _ in batches:
        place = f"@{first}" if first == last else f"@{first}-{last}"
        what = f"{marker}/{coordinator}" if marker else f"#{sequence}{'' if transactional else ' plain'}"
        lines.append(f"{producer} {epoch} {what}{place}")
    return "; ".join(lines)


def _state_records(result: Any) -> str:
    if not isinstance(result, list):
        return _code(result)
    return _lines(("tombstone" if each is None else _state_record(*each) for each in result), "nothing")


def _state_record(
    version: int, state: str, producer: str, epoch: int, timeout_ms: int, started: bool, partitions: Any, tags: Any
) -> str:
    notes = _notes(timeout_ms, started)
    return f"v{version} {state} {producer} {epoch}{notes} {partitions} {tags}".replace("'", "")


_BRIEF: Final[Mapping[type, Callable[[Any], str]]] = {
    ops.Init: _pair,
    ops.End: _pair,
    ops.Add: _by_place(_code),
    ops.AddOffsets: _code,
    ops.CommitOffsets: _by_place(_code),
    FetchOffsets: _by_place(_at),
    Markers: _by_place(_code),
    Produce: _by_place(_written),
    ops.Describe: _described,
    ops.ListTransactions: _listed,
    Producers: _producers,
    StateRecords: _state_records,
    Fetch: _fetched,
    ListOffsets: _at,
    DeleteRecords: _at,
    ops.UpdateFeatures: _updated,
}
