"""Keywords of a public call: unknown and missing ones, and what a reader of the function still sees."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from spark_2pc_sink import DualWriteSink
from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options import checks_keywords
from spark_2pc_sink.producer import TransactionalWriter


@checks_keywords
def copy(source: str, *, table: str, batch_attempts_max: int = 3) -> tuple[str, str, int]:
    """Copy a source."""
    return source, table, batch_attempts_max


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"tabel": "pass-word"}, "tabel='***': there is no such option; did you mean 'table'?"),
        ({"tabel": ["a", "u:p@h"]}, "tabel=['a', '***']: there is no such option; did you mean 'table'?"),
        (
            {"tabel_pasword": "a"},
            "tabel_pasword='***': there is no such option; valid are source, table, batch_attempts_max",
        ),
        ({}, "table=None: it is required; pass table="),
    ],
)
def test_a_wrong_keyword_is_refused_with_the_one_to_write(given: dict[str, Any], said: str) -> None:
    """The value is not shown: it may be a secret."""
    with pytest.raises(ConfigurationError) as refused:
        copy("s", **given)
    assert str(refused.value) == said


def test_the_function_is_what_it_was() -> None:
    assert copy("s", table="t") == ("s", "t", 3)
    assert str(inspect.signature(copy)) == (
        "(source: 'str', *, table: 'str', batch_attempts_max: 'int' = 3) -> 'tuple[str, str, int]'"
    )
    assert copy.__doc__ == "Copy a source."


@pytest.mark.parametrize("made", [DualWriteSink, TransactionalWriter])
def test_both_writers_name_the_nearest_keyword(made: Any) -> None:
    given = {"transactional_id": "orders", "kafka": {"bootstrap.servers": "h:9092"}}
    with pytest.raises(ConfigurationError, match=r"kafak={}: there is no such option; did you mean 'kafka'"):
        made(**given, kafak={})
    with pytest.raises(ConfigurationError, match="transactional_id=None: it is required"):
        made(kafka=given["kafka"])
    with pytest.raises(ConfigurationError, match=r"did you mean 'bootstrap\.servers'"):
        made(**{"database": "postgresql://h/d", "table": "t"} if made is DualWriteSink else {}, **given | KAFKA)


#: Misspelt.
KAFKA: dict[str, Any] = {"kafka": {"bootstrap.server": "h:9092"}}
