"""What an error of the database means."""

from __future__ import annotations

from types import SimpleNamespace

import psycopg2
import pytest
from sqlalchemy.exc import DBAPIError, InvalidRequestError

from jdbc_state.sqlstate import is_retriable, sqlstate_of, store_error, translated
from spark_2pc_sink.errors import StateStoreError


@pytest.mark.parametrize(
    "sqlstate",
    [
        *("40001", "40P01", "55P03", "25P03", "57P01", "57P02", "57P03"),
        *("08000", "08003", "08006", "08007", "53000", "53100", "53200", "53300", "53400"),
    ],
)
def test_what_may_succeed_when_it_is_run_again(sqlstate: str) -> None:
    """C1, C7, C12."""
    assert is_retriable(sqlstate)


@pytest.mark.parametrize(
    ("error", "sqlstate"),
    [
        (psycopg2.OperationalError("server closed the connection unexpectedly"), "08006"),
        (psycopg2.InterfaceError("connection already closed"), "08006"),
        (psycopg2.DatabaseError("error with status PGRES_TUPLES_OK and no message from the libpq"), "08006"),
        (psycopg2.ProgrammingError("can't execute COPY FROM: use the copy_from() method instead"), ""),
        (DBAPIError("SELECT 1", None, psycopg2.OperationalError("SSL SYSCALL error: EOF detected")), "08006"),
        (InvalidRequestError("no connection"), ""),
        (RuntimeError(), ""),
    ],
)
def test_a_connection_that_broke_has_a_code(error: Exception, sqlstate: str) -> None:
    """C1: libpq gives none when there was no answer that could have carried one."""
    assert sqlstate_of(error) == sqlstate


def test_errors_of_the_driver_are_translated_and_others_pass() -> None:
    with pytest.raises(StateStoreError, match="claim: lost") as raised, translated("claim"):
        raise psycopg2.OperationalError("lost")
    assert (raised.value.sqlstate, raised.value.retriable) == ("08006", True)
    with pytest.raises(ZeroDivisionError), translated("claim"):
        raise ZeroDivisionError
    assert not store_error("claim", RuntimeError("odd")).retriable


@pytest.mark.parametrize(
    ("sqlstate", "source_function", "remedy"),
    [
        ("42501", "aclcheck_error", "Have its owner grant the role"),
        ("42501", "ExecWithCheckOptions", "DISABLE ROW LEVEL SECURITY"),
        ("25006", "PreventCommandIfReadOnly", "default_transaction_read_only"),
    ],
)
def test_what_a_person_settles_has_its_remedy(sqlstate: str, source_function: str, remedy: str) -> None:
    said = {"message_primary": "no", "source_function": source_function}
    refused = type("Refused", (psycopg2.Error,), {"pgcode": sqlstate, "diag": SimpleNamespace(**said)})
    assert remedy in str(store_error("claim", refused()))
