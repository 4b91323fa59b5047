"""Options of keys: which of them go together, for one table and for one of several."""

from __future__ import annotations

from typing import Any

import pytest

from spark_2pc_sink import Records, Rows
from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options import SinkOptions
from tests.unit.options.test_sink_options import REQUIRED

BASE: dict[str, Any] = {**REQUIRED, "topic": "orders"}
UPSERT: dict[str, Any] = {"mode": "upsert", "upsert_keys": ["id"]}
IGNORE: dict[str, Any] = {"mode": "insert_ignore", "upsert_keys": ["id"]}
DELETE = "op = 'd'"
UNCHANGED = {"a": "a = '-'"}


def parse(**given: Any) -> SinkOptions:
    return SinkOptions.parse(**BASE, **given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"mode": "insert_ignore"}, "mode='insert_ignore': it requires upsert_keys"),
        ({"delete_when": DELETE}, "delete_when=.*no effect with mode='append'"),
        ({**IGNORE, "upsert_where": "true"}, "upsert_where=.*no effect with mode='insert_ignore'"),
        ({**UPSERT, "update_columns": []}, "update_columns=.*pass mode='insert_ignore'"),
        (
            {**UPSERT, "upsert_order_by": "lsn", "upsert_late_rows": "keep_newer", "delete_when": DELETE},
            "delete_when=.*order of a deleted row is not kept.*'deleted'",
        ),
        (
            {**IGNORE, "upsert_order_by": "lsn", "upsert_late_rows": "keep_newer"},
            "upsert_late_rows=.*the existing row is kept",
        ),
        (
            {**IGNORE, "upsert_order_by": "lsn", "upsert_superseded": "leave_out"},
            "upsert_superseded=.*sent before it is known.*dropDuplicatesWithinWatermark",
        ),
        ({"unchanged_when": UNCHANGED}, "unchanged_when=.*no effect with mode='append'"),
        ({**UPSERT, "unchanged_when": {}}, "unchanged_when=.*it must be a mapping"),
        ({**UPSERT, "unchanged_when": {"id": "true"}}, "unchanged_when=.*'id' must be one of columns"),
        ({**UPSERT, "unchanged_when": UNCHANGED, "upsert_where": "true"}, "unchanged_when=.*leave upsert_where out"),
        (
            {**UPSERT, "upsert_order_by": "n", "upsert_late_rows": "keep_newer", "unchanged_when": UNCHANGED},
            "unchanged_when=.*may still arrive late",
        ),
        (
            {**UPSERT, "upsert_order_by": "n", "upsert_superseded": "leave_out", "unchanged_when": UNCHANGED},
            "upsert_superseded=.*may lack a value that only a superseded record has",
        ),
        ({**UPSERT, "tombstones": True}, "tombstones=True.*pass delete_when"),
        ({"primary_key": ["id"]}, "primary_key=.*pass create_table=True"),
        ({"schema_evolution": "widen"}, "schema_evolution='widen': it must be 'strict' or 'add_columns'"),
        ({"on_decide": []}, "on_decide=.*it must be a function of the connection"),
        (
            {"on_decide": ["SELECT 1; COMMIT"]},
            "on_decide='SELECT 1; COMMIT': COMMIT would end the deciding transaction",
        ),
    ],
)
def test_what_does_not_go_together(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        parse(**given)


def test_what_does() -> None:
    options = parse(**UPSERT, delete_when=DELETE, tombstones=True, update_columns=["a"], upsert_where="true")
    [lane] = options.lanes
    assert lane.rows is not None
    assert lane.records is not None
    assert (lane.rows.delete_when, lane.records.tombstone_when) == (DELETE, DELETE)
    assert (lane.rows.update_columns, lane.rows.upsert_where) == (("a",), "true")
    parse(create_table=True, primary_key=["id"])
    parse(on_decide=["SELECT 1"])
    assert callable(parse(on_decide=lambda _connection, _batch: None).on_decide)


def test_outputs_have_the_same_options_by_their_own_names() -> None:
    with pytest.raises(ConfigurationError, match=r"Rows\('orders'\): delete_when=.*late_rows='keep_newer'"):
        Rows("orders", mode="upsert", keys=["id"], order_by="lsn", late_rows="keep_newer", delete_when=DELETE)
    with pytest.raises(ConfigurationError, match=r"superseded=.*mode='insert_ignore' records are sent"):
        SinkOptions.parse(
            **{**BASE, "topic": None, "table": None},
            writes=[
                Records("orders", key="id", superseded="leave_out"),
                Rows("orders", mode="insert_ignore", keys=["id"], order_by="lsn"),
            ],
        )
