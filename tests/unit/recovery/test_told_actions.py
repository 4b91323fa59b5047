"""What a recovery does is told in the database: in the statement that does it, or before what Kafka alone does."""

from __future__ import annotations

from typing import Any

import pytest

from spark_2pc_sink.errors import StateStoreError
from spark_2pc_sink.recipe.resolve import OpenTransactionEnd
from tests.unit.recovery.test_recovery import ID, Sides, decided, told


def did(sides: Sides) -> str:
    """What the newest line says, in words."""
    return str(sides.store.read_actions(ID, last=1)[0].detail["did"])


def test_how_kafka_had_ended_it_is_told() -> None:
    """B6, B7: committed, or aborted."""
    sides, pair = decided()
    sides.kafka.end(pair, commit=True)
    sides.decide(sides.start(), batch_id=1)
    sides.kafka.time_out()
    sides.start()
    assert told(sides) == [("note_done", 0), ("note_owed", 1)]
    assert did(sides).startswith("noted that Kafka is owed batch 1")


def test_an_abort_is_told_before_it_is_made() -> None:
    """A2: it is Kafka's alone. What was not told is not done."""
    sides = Sides()
    sides.kafka.produce(sides.start())
    seen: list[Any] = []
    sides.kafka.before = lambda name: seen.append((name, told(sides))) if name == "init" else None
    sides.start()
    assert seen[0] == ("init", [("abort", None)])
    assert did(sides).startswith("aborted the open transaction 0:0")


def test_without_the_line_nothing_is_aborted(monkeypatch: pytest.MonkeyPatch) -> None:
    sides = Sides()
    sides.kafka.produce(sides.start())

    def lost(*_: object) -> None:
        raise StateStoreError(operation="noting", detail="the database is gone")

    monkeypatch.setattr(sides.store, "note_action", lost)
    with pytest.raises(StateStoreError):
        sides.start()
    assert sides.kafka.aborted == []


def test_the_word_about_an_open_transaction_is_told() -> None:
    """C14: with either end; the commit that follows is a recovery's."""
    for batch_id, expected in ((None, [("open_transaction", None)]), (3, [("open_transaction", 3), ("commit", 3)])):
        sides = Sides()
        sides.kafka.produce(sides.kafka.init_producer_id().producer)
        word = OpenTransactionEnd(batch_id)
        sides.recovery(adopt=True, open_transaction=word).run(query_id=None, run_id=None)
        assert told(sides) == expected
