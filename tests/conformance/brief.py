"""Answers in few words: how cases write what they expect, and how a difference is shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tests.conformance.leader_operations import Fetch, FetchOffsets, ListOffsets, Markers, Produce, Producers
from tests.conformance.operations import Add, CommitOffsets, Describe, End, Init, Operation
from tests.conformance.state_records import StateRecords

#: What `brief` leaves away: the timeout that everything in these tests has.
_USUAL_TIMEOUT_MS = 600_000


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


def _produced(result: Mapping[Any, tuple[int, int, bool, bool, tuple[Any, ...]]]) -> Any:
    return _same({place: _written(*each) for place, each in result.items()})


def _written(code: int, offset: int, stamped: bool, started: bool, errors: tuple[Any, ...]) -> Any:
    """A duplicate is told by its time: where clients give times, only what was there before has one."""
    if errors:
        return (code, *errors)
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
