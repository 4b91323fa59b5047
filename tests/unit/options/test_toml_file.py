"""The TOML file of a sink: what it gives, and that an error names file, option and value, but no secret."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spark_2pc_sink import DualWriteSink
from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options import SinkOptions
from spark_2pc_sink.options.outputs import Records, Rows
from spark_2pc_sink.options.sources import read_toml_file

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


def options_of(sink: DualWriteSink) -> SinkOptions:
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
    assert options_of(DualWriteSink.from_toml(path)) == options_of(expected)


def test_outputs_are_tables_of_their_kind(write: Write) -> None:
    path = write(
        HEAD + '[[writes]]\nkind = "records"\ntopic = "orders"\nkey = "order_id"\n'
        '[[writes]]\nkind = "rows"\ntable = "orders"\nmode = "upsert"\nkeys = ["order_id"]\n' + KAFKA
    )
    assert options_of(DualWriteSink.from_toml(path)).writes == (
        Records("orders", key="order_id"),
        Rows("orders", mode="upsert", keys=["order_id"]),
    )


def test_python_has_the_last_word(write: Write) -> None:
    """What no file can have, and one start's other value."""
    called: list[Any] = []
    path = write(HEAD + 'table = "orders"\n' + KAFKA)
    options = options_of(DualWriteSink.from_toml(path, on_batch=called.append, table="other"))
    assert (options.on_batch, options.given()["table"]) == (called.append, "other")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("${TABLE}", "orders"),
        ("a_${TABLE}_${TABLE}", "a_orders_orders"),
        ("${MISSING:-other}", "other"),
        ("${EMPTY:-other}", "other"),
        ("${EMPTY}", ""),
        ("${TABLE:-other}", "orders"),
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
        ('dbtable = "orders"', "the name here is 'table'"),
        ('key = "${MISSING}"', "key='${MISSING}': the environment has no variable MISSING"),
        ('key = "${1}"', "key='${1}': behind ${ stands the name of a variable"),
        ('history_batches = "${PASSWORD}"', "history_batches='${PASSWORD}': it is a whole number"),
        ("kafka = 5", "kafka=5: it is a table of Kafka client properties; write them below a line [kafka]"),
        ("writes = 5", "writes=5: it is a list of tables"),
        ('[[writes]]\nkind = "record"', "writes='record': the kind of each output"),
        ('[[writes]]\nkind = "rows"\ntabel = "o"', "tabel='o': there is no such option; did you mean 'table'?"),
        ("key = ", "it is no TOML: "),
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
        ('mode = "upsrt"', "mode='upsrt': it is one of append, upsert"),
        ("batch_attempts_max = 0", "batch_attempts_max=0: it is at least 1"),
        ("batch_attempts_max = 1.5", "batch_attempts_max=1.5: it is a whole number"),
        ('batch_attempts_max = "${SECRET}"', "batch_attempts_max='${SECRET}': it is at least 1"),
        ("topic = 5", "topic=5: it is a text"),
        ('columns = { a = "${SECRET}", b = "" }', "columns='***': it is a mapping"),
        ('on_batch = "print"', "on_batch='print': it is a function"),
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


def test_an_error_about_an_option_of_the_call_does_not_name_the_file(write: Write) -> None:
    path = write(HEAD + 'table = "orders"\n' + KAFKA)
    with pytest.raises(ConfigurationError) as raised:
        DualWriteSink.from_toml(path, table=5)
    assert str(path) not in str(raised.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="it cannot be read: No such file"):
        DualWriteSink.from_toml(tmp_path / "none.toml")


def test_nothing_that_was_read_is_in_the_repr(write: Write) -> None:
    found = read_toml_file(write('database = "postgresql://job:secret@h/shop"\n[kafka]\nsasl.password = "secret"\n'))
    assert "secret" not in repr(found)
