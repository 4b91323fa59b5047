"""Options from files and the environment: what they give; an error names source, option and value, but no secret."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spark_2pc_sink import DualWriteSink
from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options import SinkOptions
from spark_2pc_sink.options.kafka import property_names
from spark_2pc_sink.options.outputs import Records, Rows
from spark_2pc_sink.options.settings import options_of
from spark_2pc_sink.options.sources import read_environment, read_properties_file, read_toml_file

# --- TOML ---------------------------------------------------------------------------------------------------------

HEAD = 'transactional_id = "orders"\ndatabase = "postgresql://job@h/shop"\n'
KAFKA = '[kafka]\nbootstrap.servers = "h:9092"\n'
Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(text: str) -> Path:
        path = tmp_path / "orders.toml"
        path.write_text(text)
        return path

    return write


def parsed(sink: DualWriteSink) -> SinkOptions:
    return sink._options


def test_a_file_is_the_call_with_the_same_keywords(write: Write) -> None:
    path = write(
        HEAD + 'topic = "orders"\ntable = "shop.orders"\nmode = "upsert"\nupsert_keys = ["order_id"]\n'
        "create_table = true\nhistory_batches = 5\n"
        '[columns]\norder_id = "order_id"\ntotal = "price * quantity"\n'
        '[kafka]\nbootstrap.servers = "h:9092"\n"client.id" = "night"\ncompression.zstd.level = 3\n'
    )
    expected = DualWriteSink(
        transactional_id="orders",
        database="postgresql://job@h/shop",
        topic="orders",
        table="shop.orders",
        mode="upsert",
        upsert_keys=["order_id"],
        create_table=True,
        history_batches=5,
        columns={"order_id": "order_id", "total": "price * quantity"},
        kafka={"bootstrap.servers": "h:9092", "client.id": "night", "compression.zstd.level": 3},
    )
    assert parsed(DualWriteSink.from_toml(path)) == parsed(expected)


def test_outputs_are_tables_of_their_kind(write: Write) -> None:
    path = write(
        HEAD + '[[writes]]\nkind = "records"\ntopic = "orders"\nkey = "order_id"\n'
        '[[writes]]\nkind = "rows"\ntable = "orders"\nmode = "upsert"\nkeys = ["order_id"]\n' + KAFKA
    )
    assert parsed(DualWriteSink.from_toml(path)).writes == (
        Records("orders", key="order_id"),
        Rows("orders", mode="upsert", keys=["order_id"]),
    )


def test_python_has_the_last_word(write: Write) -> None:
    """What no file can have, and one start's other value."""
    called: list[Any] = []
    path = write(HEAD + 'table = "orders"\n' + KAFKA)
    options = parsed(DualWriteSink.from_toml(path, on_batch=called.append, table="other"))
    assert (options.on_batch, options.given()["table"]) == (called.append, "other")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a_${TABLE}_${TABLE}", "a_orders_orders"),
        ("${MISSING:-other}", "other"),
        ("${EMPTY:-other}", "other"),
        ("${EMPTY}", ""),
        ("$${TABLE} costs $5", "${TABLE} costs $5"),
    ],
)
def test_texts_have_variables(write: Write, text: str, value: str) -> None:
    path = write(f'key = "{text}"')
    assert read_toml_file(path, {"TABLE": "orders", "EMPTY": ""}).options == {"key": value}


def test_a_variable_may_stand_for_a_number_or_a_switch(write: Write) -> None:
    path = write('history_batches = "${N}"\ncreate_table = "${T}"\nupsert_keys = "${KEYS}"\n')
    found = read_toml_file(path, {"N": "5", "T": "true", "KEYS": "a, b"})
    assert found.options == {"history_batches": 5, "create_table": True, "upsert_keys": ["a", "b"]}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('tabel = "orders"', "tabel='orders': there is no such option; did you mean 'table'?"),
        ('key = "${MISSING}"', "key='${MISSING}': the environment variable MISSING is not set"),
        ('key = "${1}"', "key='${1}': ${ must be followed by the name of a variable"),
        ('history_batches = "${PASSWORD}"', "history_batches='${PASSWORD}': it must be a whole number"),
        ("kafka = 5", "kafka=5: it must be a table of Kafka client properties; write them below a line [kafka]"),
        ('[[writes]]\nkind = "record"', "writes='record': the kind of output number 1"),
        ("key = ", "it is not valid TOML: "),
    ],
)
def test_what_cannot_be_read_is_refused(write: Write, text: str, shown: str) -> None:
    path = write(text)
    with pytest.raises(ConfigurationError) as raised:
        read_toml_file(path, {"PASSWORD": "secret"})
    assert shown in str(raised.value)
    assert str(path) in str(raised.value)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ('mode = "upsrt"', "mode='upsrt': it must be 'append', 'upsert' or"),
        ('batch_attempts_max = "${SECRET}"', "batch_attempts_max='${SECRET}': it must be at least 1"),
        ('columns = { a = "${SECRET}", b = "" }', "columns='***': it must be a mapping"),
        ('on_batch = "print"', "on_batch='print': it must be a function"),
    ],
)
def test_an_error_names_file_option_and_value(
    write: Write, monkeypatch: pytest.MonkeyPatch, line: str, shown: str
) -> None:
    """And in place of a variable's text the words that stand in the file."""
    monkeypatch.setenv("SECRET", "-70915")
    path = write(f'{HEAD}table = "orders"\n{line}\n{KAFKA}')
    with pytest.raises(ConfigurationError) as raised:
        DualWriteSink.from_toml(path)
    assert str(raised.value).startswith(f"{path}: {shown}")
    assert "-70915" not in str(raised.value)


# --- variables ----------------------------------------------------------------------------------------------------

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
    ],
)
def test_a_misspelt_variable_is_refused(name: str, remedy: str) -> None:
    """But not where a command reads only what it needs."""
    with pytest.raises(ConfigurationError) as raised:
        read_environment({name: "secret"})
    assert remedy in str(raised.value)
    assert "secret" not in str(raised.value)
    assert read_environment({name: "secret"}, strict=False).keywords == {}


def test_an_error_of_the_sink_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_MODE", "upsrt")
    for name, text in {**SIDES, "SPARK_2PC_TABLE": "t", "SPARK_2PC_TRANSACTIONAL_ID": "t"}.items():
        monkeypatch.setenv(name.replace("SPARK_2PC_", "SHOP_"), text)
    with pytest.raises(ConfigurationError, match=r"^SHOP_MODE: mode='upsrt': it must be 'append', 'upsert' or"):
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
    with pytest.raises(ConfigurationError, match="SPARK_2PC_TABLE='table': it was given before with another value"):
        read_environment({**environment, "SPARK_2PC_TABLE": "other"})


# --- Java properties ----------------------------------------------------------------------------------------------


def test_a_file_is_read_as_java_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_bytes(
        b"# comment\n! another\n\nnum.partitions=3\nnode.id : 7\nsuper.users User:\\u00fcber;\\\n    User:b\n"
        b"a\\ key=\xe9\\t|\nnum.partitions=4\n"
    )
    assert read_properties_file(path, option="--config") == [
        ("num.partitions", "3"),
        ("node.id", "7"),
        ("super.users", "User:über;User:b"),
        ("a key", "é\t|"),
        ("num.partitions", "4"),
    ]


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="No such file"):
        read_properties_file(tmp_path / "missing", option="--config")
    bad = tmp_path / "bad"
    bad.write_text("a=\\u12")
    with pytest.raises(ConfigurationError, match="four hexadecimal digits"):
        read_properties_file(bad, option="--config")


@pytest.mark.parametrize(("content", "line"), [("\nfine=1\n  odd  ", 3), ("fine=1 \\\n 2\nodd\n", 3)])
def test_a_name_alone_is_refused_and_not_shown(tmp_path: Path, content: str, line: int) -> None:
    path = tmp_path / "odd.one"
    path.write_text(content)
    with pytest.raises(ConfigurationError, match=rf"odd\.one, line {line}'") as caught:
        read_properties_file(path, option="--config")
    assert "'odd'" not in str(caught.value)
