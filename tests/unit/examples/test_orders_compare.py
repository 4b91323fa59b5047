"""The comparison finds a record or row that is missing, there twice, or changed, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest

from orders_compare import EXIT_DIFFERENT, Comparison, compare_orders, expect, record_text, row_text
from orders_events import order_events

EXPECTED = expect(order_events(300, seed=7))

EVENT: dict[str, Any] = {
    "order_id": "7-1",
    "sequence": 2,
    "status": "paid",
    "event_time": "2026-01-01T01:00:00.000001+01:00",
    "customer": {"id": 5, "name": "さくら 🌸", "country": "JP"},
    "currency": "JPY",
    "items": [
        {"sku": "a", "title": "דפתר", "quantity": 3, "unit_price": "0.10"},
        {"sku": "b", "title": "x", "quantity": 1, "unit_price": 7.5},
        {"sku": "c", "title": "y", "quantity": 2, "unit_price": None},
    ],
    "note": None,
}
# The same order, as Spark writes it and as the database returns it.
RECORD = """{"order_id":"7-1","sequence":2,"status":"paid","event_time":"2026-01-01T00:00:00.000001+00:00",
  "customer_id":5,"customer_name":"さくら 🌸","country":"JP","region":"Asia","currency":"JPY","total":7.80,
  "items":[{"sku":"a","title":"דפתר","quantity":3,"unit_price":0.10,"line_total":0.30},
           {"sku":"b","title":"x","quantity":1,"unit_price":7.50,"line_total":7.50},
           {"sku":"c","title":"y","quantity":2}]}"""
ROW: dict[str, Any] = {
    "order_id": "7-1",
    "sequence": 2,
    "status": "paid",
    "event_time": datetime(2026, 1, 1, 9, 0, 0, 1, tzinfo=timezone(timedelta(hours=9))),
    "customer_id": 5,
    "customer_name": "さくら 🌸",
    "country": "JP",
    "region": "Asia",
    "currency": "JPY",
    "total": Decimal("7.80"),
    "items": json.loads(RECORD, parse_float=str)["items"],
    "note": None,
}

#: What may have gone wrong with the records or rows of one side, and the counts of duplicates, missing and foreign.
FAULTS: dict[str, tuple[Callable[[list[str]], list[str]], tuple[int, int, int]]] = {
    "another order": (lambda texts: texts[::-1], (0, 0, 0)),
    "one twice": (lambda texts: [*texts, texts[7]], (1, 0, 0)),
    "one changed": (lambda texts: [texts[0].replace('"placed"', '"paid"'), *texts[1:]], (0, 1, 1)),
    "one that was never sent": (lambda texts: [*texts, "{}"], (0, 0, 1)),
    "all missing": (lambda texts: texts[:0], (0, -1, 0)),
}


def counts(comparison: Comparison) -> list[tuple[int, int, int]]:
    return [
        (side.duplicated.total(), side.missing.total(), side.foreign.total())
        for side in (comparison.topic, comparison.table)
    ]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("side", ["records", "rows"])
def test_a_planted_fault_is_found_on_its_side_only(side: str, fault: str) -> None:
    change, wrong = FAULTS[fault]
    sides = {"records": EXPECTED.records, "rows": EXPECTED.rows}
    wrong = tuple(len(sides[side]) if count < 0 else count for count in wrong)  # type: ignore[assignment]
    if fault == "one changed":
        sides[side] = sorted(sides[side], key=lambda text: '"placed"' not in text)
    comparison = compare_orders(EXPECTED, **{**sides, side: change(sides[side])})
    found = counts(comparison)
    assert found == ([wrong, (0, 0, 0)] if side == "records" else [(0, 0, 0), wrong])
    assert comparison.exit_code == (EXIT_DIFFERENT if any(wrong) else 0)


def test_record_and_row_say_what_the_event_makes() -> None:
    expected = expect([EVENT])
    assert expected.records == expected.rows == [record_text(b"7-1", RECORD.encode())] == [row_text(ROW)]


def test_the_last_event_of_an_order_is_its_row_wherever_it_comes() -> None:
    later = {**EVENT, "sequence": 10, "status": "returned"}
    for events in ([EVENT, later], [later, EVENT]):
        assert expect(events).rows == expect([later]).rows
