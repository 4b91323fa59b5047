"""Options from files and the environment, and that each is declared once: all its places follow from that."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest

from spark_2pc_sink import DualWriteSink
from spark_2pc_sink.cli.options import CommandParser, add_sink_options
from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options import CommonOptions, KafkaOptions, SinkOptions, checks_keywords, sources
from spark_2pc_sink.options.kafka import property_names
from spark_2pc_sink.options.outputs import Records, Rows
from spark_2pc_sink.options.settings import Theme, options_of, options_text, setting, setting_of
from spark_2pc_sink.options.sources import read_environment, read_properties_file, read_toml_file
from tools.reference_pages import options as pages

# --- TOML ---------------------------------------------------------------------------------------------------------

HEAD = 'transactional_id = "orders"\ndatabase = "postgresql://job@h/shop"\n'
KEYWORDS: dict[str, Any] = {
    "transactional_id": "orders",
    "database": "postgresql://job@h/shop",
    "topic": "orders",
    "table": "shop.orders",
    "mode": "upsert",
    "upsert_keys": ["order_id"],
    "create_table": True,
    "history_batches": 5,
    "columns": {"order_id": "order_id", "total": "price * quantity"},
    "kafka": {"bootstrap.servers": "h:9092", "client.id": "night", "compression.zstd.level": 3},
}
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
    assert parsed(DualWriteSink.from_toml(path)) == parsed(DualWriteSink(**KEYWORDS))


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


def test_what_is_no_toml_is_refused(write: Write) -> None:
    path = write("key = ")
    with pytest.raises(ConfigurationError, match=r"orders\.toml'?: .*not valid TOML: "):
        read_toml_file(path, {})


# --- variables ----------------------------------------------------------------------------------------------------

SIDES = {"SPARK_2PC_DATABASE": "postgresql://job@h/shop", "SPARK_2PC_KAFKA_BOOTSTRAP_SERVERS": "h:9092"}


def test_the_environment_is_the_call_with_the_same_keywords(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {name.upper(): str(value) for name, value in KEYWORDS.items()}
    texts |= {"UPSERT_KEYS": "order_id", "COLUMNS": json.dumps(KEYWORDS["columns"]), "CREATE_TABLE": "true", "KEY": ""}
    texts |= {"KAFKA_BOOTSTRAP_SERVERS": "h:9092", "KAFKA_CLIENT_ID": "night", "KAFKA_COMPRESSION_ZSTD_LEVEL": "3"}
    for name in texts.keys() - {"KAFKA"}:
        monkeypatch.setenv(f"SHOP_{name}", texts[name])
    assert parsed(DualWriteSink.from_env(prefix="SHOP_")) == parsed(DualWriteSink(**KEYWORDS))


def test_every_option_and_property_has_a_variable() -> None:
    """And those that tell the tests of users where servers are get in nobody's way."""
    names = [f"SPARK_2PC_{item.name.upper()}" for item in options_of(SinkOptions)]
    names += [f"SPARK_2PC_KAFKA_{name.upper().replace('.', '_')}" for name in property_names()]
    for name in names:
        try:
            read_environment({name: "5"})
        except ConfigurationError as error:
            assert "there is no such variable" not in str(error)  # noqa: PT017 - the error is one of the value
    assert read_environment({"SPARK_2PC_KAFKA_LIBS": "/libs"}).keywords == {}


def test_a_limit_and_a_statement_can_be_texts() -> None:
    """The commas of a statement are its own."""
    statement = "UPDATE audit SET a = 1, b = 2"
    named = {"SPARK_2PC_ON_DECIDE": statement, "SPARK_2PC_MAX_BAD_ROWS": "5", "SPARK_2PC_BAD_ROWS": "dead_letter"}
    found = SinkOptions.parse(
        **read_environment({**SIDES, **named}).keywords, transactional_id="orders", table="orders"
    )
    assert (found.on_decide, str(found.max_bad_rows)) == ((statement,), "5")


def test_a_command_takes_the_variables_that_it_needs() -> None:
    """An unknown one, which a sink refuses, may be another program's."""
    assert read_environment({"SPARK_2PC_TABEL": "secret"}, strict=False).keywords == {}


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


@dataclass(frozen=True, kw_only=True)
class WithMadeUp(SinkOptions):
    """A sink with one more option, by its declaration alone."""

    rows_per_moon_max: int = setting(7, "as many as a moon carries", group=Theme.TUNE, bounds=(1, 9))


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> Any:
    [item] = [item for item in fields(WithMadeUp) if item.name == "rows_per_moon_max"]
    monkeypatch.setattr(pages, "SinkOptions", WithMadeUp)
    monkeypatch.setitem(sources._OPTIONS, item.name, item)
    return item


@pytest.mark.usefixtures("made_up")
def test_a_new_option_is_in_the_signature_the_help_and_the_page() -> None:
    path = "spark_2pc_sink/sink/sink.py"
    signature = pages.with_signatures(
        path, "def __init__(\n    *,\n    old: int = 3,\n) -> None:\n    other(\n    *,\n"
    )
    assert "    *,\n    transactional_id: str,\n" in signature
    assert "    rows_per_moon_max: int = 7,\n" in signature
    assert signature.endswith("\n) -> None:\n    other(\n    *,\n")
    assert "old" not in signature
    assert pages.with_signatures(path, signature) == signature
    with pytest.raises(ValueError, match="has no __init__ with the line"):
        pages.with_signatures(path, "")
    assert "- ``rows_per_moon_max``, default ``7``: as many as a moon carries." in options_text(options_of(WithMadeUp))
    page = pages.options_page()
    assert "#### `rows_per_moon_max`\n\n`int` (1 to 9), default `7`. Since 1.0.0.\n\nAs many as a moon carries." in page
    assert re.search(rf"- {Theme.TUNE.value}: .*\[`rows_per_moon_max`\]\(#rows_per_moon_max\)", page)


@pytest.mark.usefixtures("made_up")
def test_a_new_option_is_read_from_files_variables_and_flags(tmp_path: Path) -> None:
    assert sources.read_environment({"SPARK_2PC_ROWS_PER_MOON_MAX": "8"}).options == {"rows_per_moon_max": 8}
    (tmp_path / "sink.toml").write_text('rows_per_moon_max = "${N}"\n')
    assert sources.read_toml_file(tmp_path / "sink.toml", {"N": "9"}).options == {"rows_per_moon_max": 9}
    parser = CommandParser(prog="spark-2pc check")
    add_sink_options(parser, WithMadeUp)
    assert parser.parse_args(["--rows-per-moon-max", "5"]).rows_per_moon_max == "5"
    assert "as many as a moon carries" in " ".join(parser.format_help().split())


@checks_keywords
def copy(source: str, *, table: str, batch_attempts_max: int = 3) -> tuple[str, str, int]:
    """Copy a source."""
    return source, table, batch_attempts_max


def test_a_function_whose_keywords_are_checked_is_what_it_was() -> None:
    assert copy("s", table="t") == ("s", "t", 3)
    assert str(inspect.signature(copy)) == (
        "(source: 'str', *, table: 'str', batch_attempts_max: 'int' = 3) -> 'tuple[str, str, int]'"
    )
    assert copy.__doc__ == "Copy a source."


def rows(options: type[Any]) -> dict[str, pages.OptionRow]:
    return {row.names[0]: row for row in pages.reference(options)}


@pytest.mark.parametrize("kind", [KafkaOptions, CommonOptions, SinkOptions])
def test_a_number_of_time_or_size_has_one_unit_which_its_name_says(kind: type[Any]) -> None:
    """So a variable, a flag and a line of a file mean what the keyword means; each has a reason and bounds."""
    for item in options_of(kind):
        about = setting_of(item)
        assert len(about.why) > 20, item.name
        assert {"ms": "_ms", "s": "_s", "bytes": "bytes", "": ""}[about.unit] in item.name
        assert bool(about.unit) or not re.search(r"_m?s$", item.name), item.name
        if str(item.type).startswith("int"):
            assert about.bounds is not None, item.name
