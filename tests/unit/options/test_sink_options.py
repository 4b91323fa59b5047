"""Options: everything is checked at once, nothing secret is shown, and every refusal names a way out."""

from __future__ import annotations

import json
import pickle
from dataclasses import FrozenInstanceError, fields, replace
from typing import Any

import pytest

from jdbc_state import StoreSettings
from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options import RecoveryOptions, SinkOptions, TableName
from spark_2pc_sink.options.layout import SinkLayout
from spark_2pc_sink.options.names import check_topic
from spark_2pc_sink.options.schema_registry import SchemaRegistryOptions
from spark_2pc_sink.options.settings import options_of, setting_of

URL = "postgresql+psycopg2://shop:pass-word@db:5433/shop"
REQUIRED: dict[str, Any] = {
    "transactional_id": "orders",
    "kafka": {"bootstrap.servers": "h:9092"},
    "database": URL,
    "table": "public.orders",
}


def sink(**options: object) -> SinkOptions:
    return SinkOptions.parse(**{**REQUIRED, **options})


def test_options_are_frozen_and_cross_to_the_executors() -> None:
    options = sink(columns={"id": "order_id"}, upsert_keys=["id"], mode="upsert")
    assert pickle.loads(pickle.dumps(options)) == options  # noqa: S301 - our own
    assert hash(sink()) == hash(sink())
    with pytest.raises(FrozenInstanceError):
        options.bad_rows = "fail"  # type: ignore[misc]
    with pytest.raises(ConfigurationError):
        replace(options, batch_attempts_max=0)


def test_no_secret_is_shown() -> None:
    """Operations: passwords must not reach logs, progress reports or issue trackers."""
    options = sink(
        kafka={
            "bootstrap.servers": "h:9092",
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "shop",
            "sasl.password": "pass-word",
            "ssl.certificate.location": "/c.pem",
            "ssl.key.password": "pass-word",
        }
    )
    assert "pass-word" not in repr(options)
    assert options.kafka.sasl_password == "pass-word"
    assert options.database == URL


def test_without_a_name_near_it_all_options_are_named() -> None:
    said = r"frobnicate='\*\*\*': there is no such option; valid are transactional_id, kafka, database"
    with pytest.raises(ConfigurationError, match=said):
        sink(frobnicate="pass-word")


@pytest.mark.parametrize("name", REQUIRED)
def test_what_is_required_is_named(name: str) -> None:
    """D5: also the transactional id, which the sink never makes up."""
    for options in ({**REQUIRED, name: None}, {key: value for key, value in REQUIRED.items() if key != name}):
        with pytest.raises(ConfigurationError, match=f"{name}=None: it is required; pass {name}="):
            SinkOptions.parse(**options)


@pytest.mark.parametrize("mode", ["overwrite", "complete", "truncate"])
def test_no_mode_replaces_a_table(mode: str) -> None:
    """A18: rows are added or replaced by their keys; nothing that the table has is removed."""
    with pytest.raises(ConfigurationError, match="append") as refused:
        sink(mode=mode)
    assert refused.value.option == "mode"


def test_a_comment_ends_with_its_expression() -> None:
    """Something always follows: an alias, a cast's type."""
    names = ("key", "value", "headers", "partition", "upsert_order_by")
    options = sink(
        mode="upsert", upsert_keys=["id"], columns={"id": "id -- first", "b": "b"}, **dict.fromkeys(names, "a -- why")
    )
    assert [options.given()[name] for name in names] == ["a -- why\n"] * len(names)
    assert options.given()["columns"] == {"id": "id -- first\n", "b": "b"}


def test_the_store_gets_every_setting() -> None:
    """jdbc_state has no defaults of its own, and knows none of the sink's other options."""
    options = sink(history_batches=5)
    settings = options.store_settings()
    assert (settings.history_batches, settings.history_table) == (5, "kafka_transaction_state_history")
    named = sink(state_table=55 * "a", history_table="lines")
    assert named.store_settings().history_table == "lines"
    taken = {item.name for item in options_of(SinkOptions) if setting_of(item).store}
    # A sink's batches are replayed by Spark: it keeps no records.
    assert {item.name for item in fields(StoreSettings)} - taken == {"keep_records", "password", "schema_help"}
    assert not settings.keep_records


def test_the_layout_is_what_a_reader_of_both_sides_needs() -> None:
    """It goes into the database, and comes back as it was; a later version may have more in it."""
    options = sink(topic="orders", mode="upsert", upsert_keys=["id"], upsert_order_by="ts", columns={"id": "order_id"})
    layout = options.layout
    assert (layout.topic, layout.table, layout.upsert_keys) == ("orders", "public.orders", ("id",))
    assert SinkLayout.parse({**json.loads(json.dumps(layout.as_json())), "later": 1}) == layout
    assert SinkLayout.parse({"table": "orders"}) == SinkLayout(table="orders")
    assert not layout.as_json().keys() & {"kafka", "database"}
    recovery = {name: value for name, value in REQUIRED.items() if name != "table"}
    assert RecoveryOptions.parse(**recovery, reason="looking").layout is None


def test_options_of_keys_go_together() -> None:
    options = sink(
        topic="orders",
        mode="upsert",
        upsert_keys=["id"],
        delete_when="op = 'd'",
        tombstones=True,
        update_columns=["a"],
        upsert_where="true",
    )
    [lane] = options.lanes
    assert lane.rows is not None
    assert lane.records is not None
    assert (lane.rows.delete_when, lane.records.tombstone_when) == ("op = 'd'", "op = 'd'")
    assert (lane.rows.update_columns, lane.rows.upsert_where) == (("a",), "true")


@pytest.mark.parametrize(
    ("text", "schema", "name"),
    [
        ("Public.Orders", "public", "orders"),
        ('"Public"."Ord.ers"', "Public", "Ord.ers"),
        ('"a""b"', None, 'a"b'),
        ("größe.Öl", "größe", "Öl"),
    ],
)
def test_table_names_follow_the_rules_of_postgresql(text: str, schema: str | None, name: str) -> None:
    parsed = TableName.parse(text)
    assert parsed == TableName(name, schema)
    assert TableName.parse(str(parsed)) == parsed
    quoted = '"' + name.replace('"', '""') + '"'
    assert str(parsed) == (quoted if schema is None else f'"{schema}".{quoted}')


@pytest.mark.parametrize("text", ["", "a.", "a.b.c", "1a", "a-b", '"a', 'a"b"', "x" * 64, "ö" * 32, None])
def test_other_texts_are_no_table_names(text: object) -> None:
    with pytest.raises(ConfigurationError):
        TableName.parse(text)


def test_topics_follow_the_rules_of_kafka() -> None:
    assert check_topic(None) is None
    assert check_topic("a.B_c-9") == "a.B_c-9"
    for bad in ("", ".", "..", "a/b", "x" * 250, 5):
        with pytest.raises(ConfigurationError):
            check_topic(bad)


REGISTRY = {"url": "http://user:secret@registry:8081", "basic.auth.user.info": "user:secret", "timeout": "5"}


def test_requests_to_a_registry_are_bounded_and_no_secret_of_it_is_shown() -> None:
    found = SchemaRegistryOptions.parse({"url": "http://registry:8081"})
    assert found is not None
    bounds = {"timeout": 10, "max.retries": 2, "retries.max.wait.ms": 2_000}
    assert dict(found.client) == {"url": "http://registry:8081", **bounds}
    found = SchemaRegistryOptions.parse(REGISTRY)
    assert found is not None
    assert (found.client["timeout"], str(found)) == (5, "http://registry:8081")
    options = sink(topic="orders", value_format="avro", schema_registry=REGISTRY)
    assert "secret" not in repr(found) + repr(options)
    assert pickle.loads(pickle.dumps(options)) == options  # noqa: S301 - made in this line
