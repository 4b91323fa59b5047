"""Texts of options: every place holds them, or they are refused; SQL, the database's URL, password commands."""

from __future__ import annotations

import pickle
import shlex
import sys
import time
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import example, given, strategies as st
from psycopg2.extensions import parse_dsn
from sqlalchemy import make_url
from sqlalchemy.dialects.postgresql.psycopg2 import PGDialect_psycopg2

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options import CommonOptions, KafkaOptions, Records, RecoveryOptions, Rows, SinkOptions
from spark_2pc_sink.options.database import PasswordCommand, PasswordCommandError, as_libpq_uri, parse_database_url
from spark_2pc_sink.options.kafka import property_names
from spark_2pc_sink.options.names import parse_identifier, quote_identifier
from spark_2pc_sink.options.settings import kind_of, options_of
from spark_2pc_sink.options.sql_text import bare_statements, transaction_command
from tests.unit.options.test_sink_options import REQUIRED, URL

#: What is special to a URL, SQL, psycopg2, a shell, JSON, a regular expression, or a log.
SPECIAL = "\x00\x01\n\r\t\x1b\x7f\x85\u2028\ufeff\ud800\udfff%$:;,@/\\?#[]{}()*'\"`=& ._-aé\U0001f600"
TEXTS = st.text(st.sampled_from(SPECIAL), max_size=12) | st.text(max_size=12)


def is_text(item: Any) -> bool:
    kind = kind_of(item)
    return "str" in kind and not kind.startswith("Callable") and item.name != "kafka"


def shapes(text: str) -> list[Any]:
    return [text, [text], {text: "id"}, {"id": text}]


def held(value: Any) -> None:
    """Every text of an option's value can be sent to a server, written to a file, and sent to an executor."""
    if isinstance(value, str):
        value.encode()
        assert "\x00" not in value
    elif isinstance(value, (list, tuple)):
        for entry in value:
            held(entry)
    elif isinstance(value, dict):
        held([*value.keys(), *value.values()])


def refused_or_held(make: Any) -> None:
    try:
        options = make()
    except ConfigurationError as error:
        # What refuses can be shown, logged and written to a terminal.
        str(error).encode()
        return
    for item in fields(options):
        held(getattr(options, item.name))
    if isinstance(options, SinkOptions):
        held(options.given())
    assert pickle.loads(pickle.dumps(options)) == options  # noqa: S301 - our own


def sink_option(name: str, text: str) -> None:
    for value in shapes(text):
        refused_or_held(lambda value=value: SinkOptions.parse(**{**REQUIRED, "adopt": True, name: value}))


def recovery_option(name: str, text: str) -> None:
    required = {name: value for name, value in REQUIRED.items() if name != "table"}
    refused_or_held(lambda: RecoveryOptions.parse(**{**required, name: text}))


def kafka_property(name: str, text: str) -> None:
    refused_or_held(lambda: KafkaOptions.parse({"bootstrap.servers": "h:9092", name: text}))


def records_option(name: str, text: str) -> None:
    for value in shapes(text):
        refused_or_held(lambda value=value: Records(**{"topic": "orders", name: value}))


def rows_option(name: str, text: str) -> None:
    for value in shapes(text):
        refused_or_held(lambda value=value: Rows(**{"table": "orders", name: value}))


OPTIONS = {
    sink_option: [item.name for item in options_of(SinkOptions) if is_text(item)],
    recovery_option: [item.name for item in fields(RecoveryOptions) if is_text(item)],
    kafka_property: [name for name in property_names() if name != "oauth_cb"],
    records_option: [item.name for item in fields(Records) if is_text(item)],
    rows_option: [item.name for item in fields(Rows) if is_text(item)],
}


@pytest.mark.parametrize("give", OPTIONS, ids=lambda give: give.__name__)
@given(data=st.data(), text=TEXTS)
def test_any_option_refuses_a_text_or_holds_it(give: Any, data: st.DataObject, text: str) -> None:
    give(data.draw(st.sampled_from(OPTIONS[give])), text)


@pytest.mark.parametrize("give", OPTIONS, ids=lambda give: give.__name__)
@pytest.mark.parametrize("text", ["a\x00b", "\ud800", "'\"$(`\n"], ids=["nul", "surrogate", "quotes"])
def test_each_option_refuses_a_text_or_holds_it(give: Any, text: str) -> None:
    for name in OPTIONS[give]:
        give(name, text)


@given(text=TEXTS)
@example(text=" ?")
@example(text='"?')
def test_a_url_is_read_as_it_is_written(text: str) -> None:
    """Whatever the user encoded in it; and a second reading changes nothing."""
    for url in (text, f"postgresql://{text}", f"postgresql://u:p@h/{text}", f"postgresql://u:p@h/d?{text}", URL + text):
        try:
            first = SinkOptions.parse(**{**REQUIRED, "database": url}).database
        except ConfigurationError:
            continue
        assert SinkOptions.parse(**{**REQUIRED, "database": first}).database == first


@given(text=st.text(st.sampled_from(SPECIAL), min_size=1, max_size=12))
def test_a_quoted_name_is_the_name(text: str) -> None:
    try:
        sql = quote_identifier(text)
    except ConfigurationError:
        return
    assert parse_identifier(sql, option="state_schema") == text


@pytest.mark.parametrize(
    ("text", "statements"),
    [
        ("a; b ;\n;c", ["a", "b", "c"]),
        ("SELECT 'a;b', \"c;d\"", ["select ,"]),
        ("SELECT 'it''s; so'; COMMIT", ["select", "commit"]),
        (r"SELECT E'it\'s; so'; COMMIT", ["select", "commit"]),
        ("DO $$ BEGIN; COMMIT; END $$; SELECT 1", ["do", "select 1"]),
        ("DO $a$ $$; $$ $a$", ["do"]),
        ("SELECT 1 -- ; COMMIT\n; x", ["select 1", "x"]),
        ("/* ; */ ROLLBACK", ["rollback"]),
        ("SELECT $1; $2", ["select $1", "$2"]),
    ],
)
def test_statements(text: str, statements: list[str]) -> None:
    assert bare_statements(text) == statements


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("INSERT INTO audit VALUES (1); COMMIT", "commit"),
        ("commit and chain", "commit and chain"),
        ("/* now */ Rollback", "rollback"),
        ("PREPARE TRANSACTION 'x'", "prepare transaction"),
        ("ROLLBACK TO SAVEPOINT a", None),
        ("rollback work to a", None),
        ("PREPARE audit AS SELECT 1", None),
        ("SELECT 'COMMIT'; -- COMMIT", None),
        ("UPDATE commits SET ended = 1", None),
    ],
)
def test_commands_that_end_the_transaction(text: str, command: str | None) -> None:
    assert transaction_command(text) == command


@pytest.mark.parametrize(
    ("given", "parsed"),
    [
        (" postgresql+psycopg2://u:p%40@h:1/d ", "postgresql+psycopg2://u:p%40@h:1/d"),
        ("postgresql+psycopg://u:p@h/d", "postgresql+psycopg2://u:p@h/d"),
        ("postgresql:///d?host=/run/pg", "postgresql+psycopg2:///d?host=%2Frun%2Fpg"),
        ("postgresql:///d?host=a&host=b&port=7", "postgresql+psycopg2:///d?host=a&host=b&port=7"),
    ],
)
def test_a_url_names_its_driver(given: str, parsed: str) -> None:
    assert parse_database_url(given) == parsed


@pytest.mark.parametrize(
    ("url", "uri"),
    [
        ("postgresql+psycopg2://db:5433/d?sslmode=require&sslpassword=x", "postgresql://db:5433/d?sslmode=require"),
        ("postgresql://a%20b@db/d?options=-c%20jit%3Doff", "postgresql://a%20b@db/d?options=-c%20jit%3Doff"),
        (
            "postgresql://job@/shop?host=a:5432&host=b:5433&target_session_attrs=read-write",
            "postgresql://job@a:5432,b:5433/shop?target_session_attrs=read-write",
        ),
        ("postgresql://job@/shop?host=/var/run", "postgresql://job@%2Fvar%2Frun/shop"),
        ("postgresql://[::1]:5432/my shop", "postgresql://[::1]:5432/my%20shop"),
    ],
)
def test_libpq_is_told_the_same(url: str, uri: str) -> None:
    """What SQLAlchemy writes has spaces and plus signs, and names a host twice: psql refuses it, or goes elsewhere."""
    assert as_libpq_uri(url) == uri
    dialect: Any = PGDialect_psycopg2
    _, told = dialect().create_connect_args(make_url(url))
    public = {name: str(value) for name, value in told.items() if "password" not in name}
    assert parse_dsn(uri) == public


LIMIT_S = 30


def command(code: str, *, timeout_s: int = LIMIT_S) -> PasswordCommand:
    return PasswordCommand(shlex.join([sys.executable, "-c", code]), timeout_s)


def refusal(password: PasswordCommand) -> str:
    with pytest.raises(PasswordCommandError) as caught:
        password()
    return str(caught.value)


@pytest.mark.parametrize(("printed", "password"), [("s3cret\r\n", "s3cret"), (" ä b \nmore\n", " ä b ")])
def test_the_first_line_is_the_password(printed: str, password: str) -> None:
    assert command(f"import sys; sys.stdout.buffer.write({printed.encode()!r})")() == password


def test_no_shell_reads_the_command() -> None:
    """So that what stands in it means itself."""
    text = shlex.join([sys.executable, "-c", "import sys; print(sys.argv[1])", "$HOME; echo `id`"])
    assert PasswordCommand(text, LIMIT_S)() == "$HOME; echo `id`"


def test_a_command_has_its_time() -> None:
    """It is killed: nobody waits for it any more."""
    began_s = time.monotonic()
    assert refusal(command("import time; time.sleep(60)", timeout_s=1)) == "password_command was killed after 1 s"
    assert time.monotonic() - began_s < LIMIT_S


def common_options(**given: Any) -> CommonOptions:
    kafka = {"bootstrap.servers": "h:1"}
    return CommonOptions.parse(**{"transactional_id": "o", "kafka": kafka, "database": "postgresql://u@h/d", **given})


def test_who_is_asked_for_the_password() -> None:
    def function() -> str:
        return "s3cret"

    assert common_options().password_source is None
    assert common_options(database_password=function).password_source is function
    assert common_options(password_command="cat f", connect_timeout_s=7).password_source == PasswordCommand("cat f", 7)
    assert common_options(database_password=function).store_settings().password is function
    assert "function" not in repr(common_options(database_password=function))
