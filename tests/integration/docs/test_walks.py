"""The walks of ARCHITECTURE.md are those of the running code."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from spark_2pc_sink.testing import ReferenceCoordinator
from tests.harness.call_trace import Lane
from tests.integration.docs.walks import (
    PAGE,
    ROOMS,
    Walk,
    calls_up,
    draw,
    drawn,
    produce_request,
    rooms,
    section,
    sides,
    told,
    with_walks,
)

if TYPE_CHECKING:
    from tests.harness.providers import Database

LANE = Lane(
    ["sink/sink:__call__", "ids:parse", "sink/job/shape:count", "wire/codec:read", "sink/job/shape:tasks"],
    [("sink/sink", "sink/job/shape"), ("wire/codec", "sink/job/shape"), ("ids", "sink/sink")],
)


@pytest.fixture(scope="module")
def both_sides(postgres: Database) -> Iterator[dict[str, Walk]]:
    name = f"walk_{secrets.token_hex(4)}"
    with ReferenceCoordinator() as kafka:
        kafka.create_topic("walk", partitions=2)
        yield sides(kafka.bootstrap, postgres.create_database(name), "walk")
    postgres.drop_database(name)


def check(name: str, walk: Walk) -> None:
    """The page has the same lanes, rooms and calls up; the modules that it names were called."""
    page = told(section(PAGE.read_text(), name))
    help_text = f"run `python -m tests.integration.docs.walks --write`, or paste into {PAGE.name}:\n{drawn(walk)}"
    assert page.keys() == walk.keys(), help_text
    for title, lane in walk.items():
        met = rooms(lane)
        assert list(page[title].rooms) == list(met), help_text
        assert page[title].up == calls_up(lane), help_text
        for room, modules in page[title].rooms.items():
            assert set(modules) <= met[room].keys(), help_text


@pytest.mark.slow
@pytest.mark.java
@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", ["micro-batch", "recovery", "status"])
def test_the_walks_through_both_sides(both_sides: dict[str, Walk], name: str) -> None:
    """A batch; then a status and a recovery of what its job has left in doubt, killed between the two commits."""
    check(name, both_sides[name])


def test_the_walk_of_a_produce_request() -> None:
    check("produce", produce_request())


def test_rooms_come_in_the_order_of_the_first_call() -> None:
    """The modules at the top are no room."""
    assert rooms(LANE) == {
        "sink": {"sink/sink": 1},
        "sink/job": {"sink/job/shape": 2},
        "wire": {"wire/codec": 1},
    }


def test_calls_into_a_higher_room_are_named() -> None:
    assert calls_up(LANE) == [("wire/codec", "sink/job/shape")]


def test_what_is_drawn_is_read_back() -> None:
    page = "before\n<!-- walk: a -->\nold\n<!-- end of walk: a -->\nafter\n"
    page = with_walks(page, {"a": {"A lane": LANE, "Another": Lane(LANE.entries[:1], [])}})
    assert page.startswith(
        "before\n<!-- walk: a -->\n- **A lane:** `sink` (sink) → `sink/job` (shape) → `wire` (codec)."
    )
    assert page.endswith("\n<!-- end of walk: a -->\nafter\n")
    found = told(section(page, "a"))
    assert found["A lane"].rooms == {"sink": ["sink/sink"], "sink/job": ["sink/job/shape"], "wire": ["wire/codec"]}
    assert found["A lane"].up == calls_up(LANE)
    assert found["Another"].rooms == {"sink": ["sink/sink"]}
    assert draw("A lane", LANE) in page


def test_every_room_has_its_place() -> None:
    package = PAGE.parent / "spark_2pc_sink"
    folders = {str(path.parent.relative_to(package)) for path in package.rglob("__init__.py")} - {"."}
    assert folders - set(ROOMS) == set()
