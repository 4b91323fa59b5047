"""The input of the job with several outputs, and what each output must hold in the end. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

SCHEMA = "id BIGINT, item INT, note STRING, paid BOOLEAN, gone BOOLEAN, lines ARRAY<STRUCT<sku: STRING, n: INT>>"
#: Few items: most events replace or delete what another one, of its batch or of one before, has left.
_ITEMS = 40
_LINES_MAX = 4
_GONE_SHARE = 0.2
#: Notes that PostgreSQL refuses: by a constraint, and because no text has such a character.
_BAD_NOTES = ("refused", "nul \x00 in it")
#: What a constraint refuses in a line, which is a bad row of its event.
_BAD_COUNT = -1


@dataclass(frozen=True)
class Event:
    """One row of the input; an `id` comes once.

    Attributes:
        id: grows from event to event.
        item: that it is about; the newest event of an item is its state.
        note: text.
        paid: goes to the topic of these only.
        gone: the item is deleted.
        lines: each is a row of its own.
    """

    id: int
    item: int
    note: str
    paid: bool
    gone: bool
    lines: list[dict[str, Any]] = field(default_factory=list)

    @property
    def bad(self) -> bool:
        """True where a table refuses it, so that it goes to the dead letters and to no output."""
        return self.note in _BAD_NOTES or any(line["n"] == _BAD_COUNT for line in self.lines)


def make_events(draw: random.Random, first: int, count: int, *, bad: bool) -> list[Event]:
    """Draw events with ids from ``first`` on; with ``bad`` one of them is refused by a table."""
    events = [_event(draw, number) for number in range(first, first + count)]
    if bad:
        victim = draw.choice(events)
        kind = draw.randrange(len(_BAD_NOTES) + 1)
        changed = {"note": _BAD_NOTES[kind]} if kind < len(_BAD_NOTES) else {"lines": [{"sku": "s", "n": _BAD_COUNT}]}
        events[events.index(victim)] = Event(**{**vars(victim), **changed})
    return events


def expected(events: Iterable[Event]) -> dict[str, list[tuple[Any, ...]]]:
    """What each output must hold, by its name in `tests.chaos.outputs_job`.

    Args:
        events: all of the input, in its order.
    """
    given = list(events)
    good = [event for event in given if not event.bad]
    last = {event.item: event for event in good}
    return {
        "topic outputs": [(str(event.item), None if event.gone else (event.id, event.note)) for event in good],
        "topic outputs.lines": [(line["sku"], event.id, line["n"]) for event in good for line in event.lines],
        "topic outputs.paid": [(str(event.id), event.note) for event in good if event.paid],
        "table outputs_log": [(event.id, event.item, event.note) for event in good],
        "table outputs_state": [(event.item, event.id, event.note) for event in last.values() if not event.gone],
        "table outputs_lines": [(event.id, line["sku"], line["n"]) for event in good for line in event.lines],
        **{f"{side} of dead letters": [(event.id,) for event in given if event.bad] for side in ("topic", "table")},
    }


def _event(draw: random.Random, number: int) -> Event:
    return Event(
        id=number,
        item=draw.randrange(_ITEMS),
        note=f"n {number} äö€ ".ljust(draw.choice((20, 200)), "·"),
        paid=draw.random() < 0.5,
        gone=draw.random() < _GONE_SHARE,
        lines=[{"sku": f"sku-{line}", "n": number % 7 + line} for line in range(draw.randrange(_LINES_MAX))],
    )
