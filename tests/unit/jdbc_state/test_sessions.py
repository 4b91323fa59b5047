"""The names of a driver's sessions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from jdbc_state import application_name
from jdbc_state.sessions import (
    APPLICATION_NAME_BYTES_MAX,
    application_name_prefix,
    presence_name,
)

IDS = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=255) | st.text(
    "ab:#2pc1é", min_size=1, max_size=60
)
GENERATIONS = st.integers(1, 2**63 - 1)


@given(IDS, GENERATIONS)
def test_it_is_never_cut_off_or_rewritten_by_the_server(transactional_id: str, generation: int) -> None:
    """C2: PostgreSQL cuts at 63 bytes and rewrites what is not printable ASCII; the name must be found again."""
    name = application_name(transactional_id, generation)
    assert len(name.encode()) <= APPLICATION_NAME_BYTES_MAX
    assert name.isascii()
    assert name.isprintable()


@given(IDS, IDS, GENERATIONS, GENERATIONS)
def test_it_belongs_to_one_id_and_one_generation(one: str, other: str, first: int, second: int) -> None:
    """B21: an id with a colon is not another id with a generation."""
    same = application_name(one, first) == application_name(other, second)
    assert same == ((one, first) == (other, second))
    rest = application_name(one, first).removeprefix(application_name_prefix(other))
    assert (rest.isascii() and rest.isdecimal()) == (one == other)


@given(IDS, GENERATIONS)
def test_the_name_by_which_a_driver_is_seen_fits_too(transactional_id: str, generation: int) -> None:
    """D10: whatever the id; its last part is the generation."""
    name = presence_name('"public"."state"', transactional_id, generation)
    assert len(name.encode()) <= APPLICATION_NAME_BYTES_MAX
    assert name.isascii()
    assert name.isprintable()
    assert name.rpartition(":")[2] == str(generation)


@given(IDS, IDS, st.sampled_from(["a.state", "b.state"]), st.sampled_from(["a.state", "b.state"]))
def test_a_driver_is_seen_as_that_of_its_own_sink(one: str, other: str, table: str, table_of_other: str) -> None:
    """D10: told apart by id and state table; and not taken for a deciding transaction, which a newer claim ends."""
    name = presence_name(table, one, 7)
    assert (name == presence_name(table_of_other, other, 7)) == ((one, table) == (other, table_of_other))
    assert not name.startswith(application_name_prefix(one))
