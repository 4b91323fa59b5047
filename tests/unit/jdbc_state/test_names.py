"""The public names of jdbc_state, and its settings: what a writer finds without reading further."""

from __future__ import annotations

import pytest

import jdbc_state
from jdbc_state import StoreSettings
from spark_2pc_sink.options import RecoveryOptions


def test_every_name_that_is_listed_can_be_had() -> None:
    assert all(getattr(jdbc_state, name) is not None for name in dir(jdbc_state))
    assert dir(jdbc_state) == sorted(jdbc_state.__all__)


def test_a_name_that_is_not_listed_is_refused_as_python_does() -> None:
    with pytest.raises(AttributeError, match="module 'jdbc_state' has no attribute 'SqlStore'"):
        _ = jdbc_state.SqlStore  # type: ignore[attr-defined]


def test_a_store_without_settings_is_that_of_a_sink_without_options() -> None:
    """The command line finds the rows of either."""
    options = RecoveryOptions.parse(
        transactional_id="orders", kafka={"bootstrap.servers": "localhost:9092"}, database="postgresql://job@db/shop"
    )
    given = options.store_settings()
    assert vars(StoreSettings(schema_help=given["schema_help"])) == given | {"keep_records": False}


def test_the_history_goes_by_the_name_of_the_state_table() -> None:
    assert StoreSettings(state_table="orders").history_table == "orders_history"
    assert StoreSettings(state_table="orders", history_table="lines").history_table == "lines"
