"""Error codes carry the names and the retriability of Apache Kafka 4.4.0."""

from __future__ import annotations

import pytest

from spark_2pc_sink.codes import Code
from spark_2pc_sink.wire.error_codes import ERROR_CODES, describe_error


def test_every_code_with_a_branch_has_kafkas_name() -> None:
    assert {code: describe_error(code).name for code in Code} == {code: code.name for code in Code}


@pytest.mark.parametrize(
    ("code", "retriable"),
    [(14, True), (15, True), (16, True), (51, True), (6, True), (2, True), (45, False), (47, False), (48, False),
     (49, False), (53, False), (90, False), (105, False), (120, False), (0, False), (-1, False)],
)  # fmt: skip
def test_retriable_is_what_kafkas_clients_retry(code: int, retriable: bool) -> None:
    assert describe_error(code).retriable is retriable


def test_every_code_of_kafka_4_4_is_named() -> None:
    """Kafka 4.4.0 has -1 to 136, without a gap."""
    assert set(range(-1, 137)) <= set(ERROR_CODES)


def test_a_code_from_the_future_is_shown_and_not_retried() -> None:
    assert str(describe_error(900)) == "UNKNOWN_ERROR_900 (900)"
    assert not describe_error(900).retriable
    assert str(describe_error(90)) == "PRODUCER_FENCED (90)"
