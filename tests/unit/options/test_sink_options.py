"""Options: everything is checked at once, nothing secret is shown, and every refusal names a way out."""

from __future__ import annotations

import json
import pickle
from dataclasses import FrozenInstanceError, fields, replace
from typing import Any

import pytest

from jdbc_state import StoreSettings
from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options import KafkaOptions, RecoveryOptions, SinkOptions, TableName
from spark_2pc_sink.options.layout import SinkLayout
from spark_2pc_sink.options.names import check_topic

URL = "postgresql+psycopg2://shop:pass-word@db:5433/shop"
REQUIRED: dict[str, Any] = {
    "transactional_id": "orders",
    "kafka": {"bootstrap.servers": "h:9092"},
    "database": URL,
    "table": "public.orders",
}


def kafka(**properties: object) -> KafkaOptions:
    """KafkaOptions of properties with '_' for '.'."""
    return kafka_of({name.replace("_", "."): value for name, value in properties.items()})


def kafka_of(properties: dict[str, object]) -> KafkaOptions:
    return KafkaOptions.parse({"bootstrap.servers": "h:9092", **properties})


def sink(**options: object) -> SinkOptions:
    return SinkOptions.parse(**{**REQUIRED, **options})


# --- all options -----------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"upsertKeys": ["id"]}, "did you mean 'upsert_keys'?"),
        ({"dbtable": "orders"}, "the name here is 'table'"),
        ({"frobnicate": "pass-word"}, "valid are transactional_id, kafka, database"),
    ],
)
def test_an_unknown_option_names_the_nearest(options: dict[str, object], said: str) -> None:
    """Users bring the names of other sinks. The value is not shown: it may be a secret."""
    with pytest.raises(ConfigurationError, match="there is no such option") as raised:
        SinkOptions.parse(**options, kafka="wrong too, but that is not the first thing to say")
    assert said in str(raised.value)
    assert "pass-word" not in str(raised.value)


@pytest.mark.parametrize("name", REQUIRED)
def test_what_is_required_is_named(name: str) -> None:
    """D5: also the transactional id, which the sink never makes up."""
    for options in ({**REQUIRED, name: None}, {key: value for key, value in REQUIRED.items() if key != name}):
        with pytest.raises(ConfigurationError, match=f"{name}=None: it is required; pass {name}="):
            SinkOptions.parse(**options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"mode": "upsert"}, "it requires upsert_keys"),
        ({"upsert_keys": ["id"]}, "no effect with mode='append'"),
        ({"upsert_superseded": "leave_out"}, "it requires an order of the rows with one key"),
        ({"mode": "upsert", "upsert_keys": ["id"], "upsert_late_rows": "keep_newer"}, "pass upsert_order_by="),
        ({"mode": "upsert", "upsert_keys": ["id"], "columns": {"total": "1"}}, "add 'id' to columns"),
        ({"mode": "upsert", "upsert_keys": ["id", "id"]}, "distinct column names; pass upsert_keys=['id']"),
        ({"mode": "upsrt"}, "did you mean 'upsert'?"),
        ({"bad_rows": True}, "it must be 'fail' or 'dead_letter'"),
        ({"columns": {"id": ""}}, "a mapping of table columns"),
        ({"create_table": "yes"}, "True or False"),
        ({"batch_attempts_max": 0}, "at least 1"),
        ({"batch_attempts_max": True}, "a whole number"),
        ({"lock_timeout_ms": "5s"}, "pass a number ms"),
        ({"claim_lock_timeout_ms": 31_000}, "not exceed claim_deadline_ms=30000"),
        ({"state_table": "a", "history_table": "a"}, "it must differ from state_table"),
        ({"history_table": "kafka_transaction_state_actions"}, "and from kafka_transaction_state_actions"),
        ({"state_table": 56 * "a"}, "with the suffix _history it must have at most 63 bytes"),
        ({"reason": "the disk is gone"}, "it must be combined with adopt, accept_loss or accept_replay"),
        ({"kafka": {"bootstrap.servers": "h", "transaction.timeout.ms": 5_000}}, "below transaction.timeout.ms=5000"),
        ({"require_tls": True}, "security.protocol=PLAINTEXT has no TLS, and h:9092 is on another machine"),
        ({"topic": "a b"}, "1 to 249 of the characters"),
        ({"table": "a.b.c"}, "'table' or 'schema.table'"),
        ({"driver_port": 65_530}, "the last port would be 65545, above 65535"),
        ({"on_batch": "print"}, "a function of one argument"),
    ],
)
def test_contradictions_and_bad_values_are_refused(options: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        sink(**options)
    assert said in str(raised.value)


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
    settings = StoreSettings(**options.store_settings())
    assert (settings.history_batches, settings.history_table) == (5, "kafka_transaction_state_history")
    named = sink(state_table=55 * "a", history_table="lines")
    assert StoreSettings(**named.store_settings()).history_table == "lines"
    # A sink's batches are replayed by Spark: it keeps no records.
    assert {item.name for item in fields(StoreSettings)} - {"keep_records"} == set(options.store_settings())


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


def test_what_is_named_as_lost_is_a_part_of_adopting() -> None:
    """C5: alone it would say nothing."""
    assert str(sink(adopt=True, accept_loss="41..43").accept_loss) == "41..43"
    assert sink(adopt=True).accept_loss is None
    with pytest.raises(ConfigurationError, match=r"accept_loss='41\.\.43': it must be combined with adopt"):
        sink(accept_loss="41..43")
    with pytest.raises(ConfigurationError, match="accept_loss='all'"):
        sink(adopt=True, accept_loss="all")


def test_recovery_takes_its_own_options_only() -> None:
    recovery = {name: value for name, value in REQUIRED.items() if name != "table"}
    assert RecoveryOptions.parse(**recovery, adopt=True).adopt
    with pytest.raises(ConfigurationError, match="there is no such option"):
        RecoveryOptions.parse(**REQUIRED)
    with pytest.raises(ConfigurationError, match="the name here is 'decision'"):
        RecoveryOptions.parse(**recovery, accept_replay=5)
    with pytest.raises(ConfigurationError, match="did you mean 'accept_replay'"):
        sink(acceptReplay=5)


def test_a_replay_is_accepted_by_the_name_of_its_batch() -> None:
    """A7: a flag that is left on would accept the next one too. True would else be taken for batch 1."""
    assert sink(accept_replay=0).accept_replay == 0
    with pytest.raises(ConfigurationError, match="it must be a whole number"):
        sink(accept_replay=True)


# --- names -----------------------------------------------------------------------------------------------------------


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
