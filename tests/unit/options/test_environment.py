"""The environment's variables of a sink: each option and property has one, and a misspelt one is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_2pc_sink import DualWriteSink
from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options import SinkOptions
from spark_2pc_sink.options.kafka import property_names
from spark_2pc_sink.options.settings import options_of
from spark_2pc_sink.options.sources import read_environment

SIDES = {"SPARK_2PC_DATABASE": "postgresql://job@h/shop", "SPARK_2PC_KAFKA_BOOTSTRAP_SERVERS": "h:9092"}


def test_the_environment_is_the_call_with_the_same_keywords(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {
        "DATABASE": "postgresql://job@h/shop",
        "KAFKA_BOOTSTRAP_SERVERS": "h:9092",
        "KAFKA_COMPRESSION_ZSTD_LEVEL": "3",
        "TRANSACTIONAL_ID": "orders",
        "TABLE": "orders",
        "MODE": "upsert",
        "UPSERT_KEYS": "order_id",
        "COLUMNS": '{"order_id": "id"}',
        "CREATE_TABLE": "true",
        "HISTORY_BATCHES": "5",
        "TOPIC": "",
    }
    for name, text in texts.items():
        monkeypatch.setenv(f"SHOP_{name}", text)
    expected = DualWriteSink(
        transactional_id="orders",
        kafka={"bootstrap.servers": "h:9092", "compression.zstd.level": 3},
        database="postgresql://job@h/shop",
        table="orders",
        mode="upsert",
        upsert_keys=["order_id"],
        columns={"order_id": "id"},
        create_table=True,
        history_batches=5,
    )
    assert DualWriteSink.from_env(prefix="SHOP_")._options == expected._options


def test_every_option_and_property_has_a_variable() -> None:
    """And those that tell the tests of users where servers are get in nobody's way."""
    names = [f"SPARK_2PC_{item.name.upper()}" for item in options_of(SinkOptions)]
    names += [f"SPARK_2PC_KAFKA_{name.upper().replace('.', '_')}" for name in property_names()]
    for name in names:
        try:
            read_environment({name: "5"})
        except ConfigurationError as error:
            assert "has this name" not in str(error)  # noqa: PT017 - the error is one of the value
    assert read_environment({"SPARK_2PC_KAFKA_LIBS": "/libs"}).keywords == {}


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("SPARK_2PC_TABEL", "did you mean 'SPARK_2PC_TABLE'?"),
        ("SPARK_2PC_KAFKA_SASL_PASWORD", "did you mean 'SPARK_2PC_KAFKA_SASL_PASSWORD'?"),
        ("SPARK_2PC_DSN", "the name here is SPARK_2PC_DATABASE"),
    ],
)
def test_a_misspelt_variable_is_refused(name: str, remedy: str) -> None:
    """But not where a command reads only what it needs."""
    with pytest.raises(ConfigurationError) as raised:
        read_environment({name: "secret"})
    assert remedy in str(raised.value)
    assert "secret" not in str(raised.value)
    assert read_environment({name: "secret"}, strict=False).keywords == {}


@pytest.mark.parametrize(
    ("name", "text", "shown"),
    [
        ("HISTORY_BATCHES", "many", "SPARK_2PC_HISTORY_BATCHES='many': it is a whole number"),
        ("ADOPT", "ja", "SPARK_2PC_ADOPT='ja': it is one of 'true', 'false'"),
        ("COLUMNS", "[]", "SPARK_2PC_COLUMNS='[]': its text is JSON, an object"),
        ("COLUMNS", "{", "SPARK_2PC_COLUMNS='{': its text is JSON: "),
        ("WRITES", '[{"kind": "record"}]', "SPARK_2PC_WRITES='record': the kind of each output"),
    ],
)
def test_a_text_that_is_no_value_is_refused(name: str, text: str, shown: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        read_environment({f"SPARK_2PC_{name}": text})
    assert str(raised.value).startswith(shown)


def test_an_error_of_the_sink_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_MODE", "upsrt")
    for name, text in {**SIDES, "SPARK_2PC_TABLE": "t", "SPARK_2PC_TRANSACTIONAL_ID": "t"}.items():
        monkeypatch.setenv(name.replace("SPARK_2PC_", "SHOP_"), text)
    with pytest.raises(ConfigurationError, match=r"^SHOP_MODE: mode='upsrt': it is one of append, upsert"):
        DualWriteSink.from_env(prefix="SHOP_")


def test_files_that_variables_name_are_read_too(tmp_path: Path) -> None:
    """What two of them say must be the same."""
    config, client = tmp_path / "orders.toml", tmp_path / "client.properties"
    config.write_text('table = "orders"\n[kafka]\nclient.id = "${NAME}"\n')
    client.write_text("sasl.password=hidden\n")
    environment = {"SPARK_2PC_CONFIG": str(config), "SPARK_2PC_COMMAND_CONFIG": str(client), "NAME": "night", **SIDES}
    assert read_environment(environment).keywords == {
        "table": "orders",
        "database": SIDES["SPARK_2PC_DATABASE"],
        "kafka": {"client.id": "night", "sasl.password": "hidden", "bootstrap.servers": "h:9092"},
    }
    with pytest.raises(ConfigurationError, match="SPARK_2PC_TABLE='table': a property has one value"):
        read_environment({**environment, "SPARK_2PC_TABLE": "other"})
