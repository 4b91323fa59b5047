"""ListTransactions, DescribeTransactions and the metrics, row by row."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_2pc_sink.codes import Code
from spark_2pc_sink.reference.coordinator.events import DescribeTransactions, ListTransactions, Operation, Resource
from spark_2pc_sink.reference.coordinator.plans import (
    DescribeTransactionsReply,
    ListTransactionsReply,
    TransactionDescription,
)
from spark_2pc_sink.reference.coordinator.states import STATES_BY_LABEL, TransactionState

from .access import denied
from .driver import TID, Driver, metadata

LABELS = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort")


def everyone() -> Driver:
    """One id per state, named after it, with producer ids from 40 on; all but Empty started 10 s ago."""
    known = (
        replace(metadata(STATES_BY_LABEL[label], (40 + index, 5)), transactional_id=label)
        for index, label in enumerate(LABELS)
    )
    driver = Driver.of(*known)
    driver.now_ms += 10_000
    return driver


def listed(driver: Driver, **filters: object) -> set[str]:
    reply = driver.refused(ListTransactions(**filters))  # type: ignore[arg-type]
    assert isinstance(reply, ListTransactionsReply)
    assert reply.code == 0
    assert all(row.transactional_id == row.state for row in reply.transactions)
    return {row.transactional_id for row in reply.transactions}


@pytest.mark.parametrize("pattern", ["(", "a)(b", "(?=a)", r"(a)\1", "*", "[", "a{2000}", "(?<n>"])
def test_what_is_no_re2_pattern_is_refused(pattern: str) -> None:
    """RE2/J full match, bad pattern -> 128; also what Python would take."""
    assert everyone().refused(ListTransactions(pattern=pattern)) == ListTransactionsReply(
        Code.INVALID_REGULAR_EXPRESSION
    )


def test_a_malicious_pattern_takes_linear_time() -> None:
    """Python's re needs 2**N steps here; the timeout of the test suite would end it."""
    driver = Driver.of(replace(metadata(TransactionState.EMPTY), transactional_id="a" * 5000 + "b"))
    assert listed(driver, pattern="(a+)+$") == set()


def test_rows_without_describe_are_dropped_silently() -> None:
    access = denied((Operation.DESCRIBE, Resource.TRANSACTIONAL_ID, "Ongoing"))
    assert listed(everyone(), access=access) == set(LABELS) - {"Ongoing"}


def described(driver: Driver, *names: str, **fields: object) -> tuple[TransactionDescription, ...]:
    reply = driver.refused(DescribeTransactions(transactional_ids=names, **fields))  # type: ignore[arg-type]
    assert isinstance(reply, DescribeTransactionsReply)
    return reply.transactions


def test_a_kept_transaction_shows_its_own_pair() -> None:
    """DescribeTransactions shows (P,E), not the client's pair."""
    driver = Driver.of(metadata(TransactionState.ONGOING, next_producer_id=73, next_producer_epoch=2))
    (row,) = described(driver, TID)
    assert row.pair == (42, 5)
    reply = driver.refused(ListTransactions(producer_id_filters=(73,)))
    assert reply == ListTransactionsReply(0)


def test_rights_hide_ids_and_topics() -> None:
    """No DESCRIBE 53; topics filtered by DESCRIBE."""
    driver = Driver.of(metadata(TransactionState.ONGOING))
    on_id = denied((Operation.DESCRIBE, Resource.TRANSACTIONAL_ID, TID))
    on_topic = denied((Operation.DESCRIBE, Resource.TOPIC, "t"))
    assert described(driver, TID, access=on_id) == (TransactionDescription(53, TID),)
    assert described(driver, TID, access=on_topic)[0].partitions == ()
