"""Transactions that cannot be watched over, as the process may open no more files."""

from __future__ import annotations

import errno
import time
from contextlib import ExitStack

import pytest

from spark_2pc_sink.errors import CommitUnknownError, StateStoreError
from tests.integration.state.state_stores import FIRST, ID, claim, execute, sql_store


def test_a_transaction_that_cannot_be_watched_is_ended(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """D16: no file descriptor is left in the middle of it. It holds no lock afterwards, and COMMIT was not sent."""
    with sql_store(database) as store:
        row = claim(store)
        deciding = ExitStack()
        deciding.enter_context(store.deciding(ID, row.generation)).decide(FIRST)
        with monkeypatch.context() as patch:
            patch.setattr("jdbc_state.watchdog.os.dup", _no_descriptor)
            with pytest.raises(StateStoreError, match="cannot be watched") as raised:
                deciding.close()
        assert (raised.value.retriable, isinstance(raised.value, CommitUnknownError)) == (True, False)
        begun_s = time.monotonic()
        assert execute(database, "SELECT status FROM kafka_transaction_state FOR UPDATE NOWAIT") == [("none",)]
        assert time.monotonic() - begun_s < 5


def _no_descriptor(_: int) -> int:
    raise OSError(errno.EMFILE, "Too many open files")
