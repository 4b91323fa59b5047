"""The names of a driver's sessions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from jdbc_state import application_name
from jdbc_state.sessions import (
    APPLICATION_NAME_BYTES_MAX,
    DriverSession,
    Session,
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


def test_it_can_be_read_by_people() -> None:
    assert application_name("orders", 7) == "2pc:orders:7"
    assert application_name("orders:eu", 7) == "2pc:orders:eu:7"
    assert application_name("bestellungen-für-köln", 7).startswith("2pc:#")
    assert application_name("#1", 7).startswith("2pc:#") != application_name("#1", 7).startswith("2pc:#1:")


def test_a_session_is_named_in_messages() -> None:
    assert str(Session(12, "shop", "2pc:orders:7")) == "pid 12 (2pc:orders:7, role shop)"
    assert str(Session(12, "shop", "")) == "pid 12 (no application_name, role shop)"


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


def test_the_session_of_a_driver_can_be_read_by_people() -> None:
    assert presence_name("public.kafka_transaction_state", "orders", 7).startswith("2pc@orders:")
    assert str(DriverSession(12, "job", hidden=False, address="10.0.0.7")) == "pid 12 from 10.0.0.7, role job"
    assert str(DriverSession(12, "job", hidden=False, address="")) == "pid 12 from a local socket, role job"
    assert "visible only to its role and pg_read_all_stats" in str(DriverSession(12, "job", hidden=True, address=""))
