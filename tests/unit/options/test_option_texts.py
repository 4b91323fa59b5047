"""Texts of options: whatever is in them, it is refused by name, or every place that it goes to can hold it."""

from __future__ import annotations

import pickle
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sqlalchemy import make_url

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options import KafkaOptions, Records, RecoveryOptions, Rows, SinkOptions
from spark_2pc_sink.options.kafka import property_names
from spark_2pc_sink.options.names import parse_identifier, quote_identifier
from spark_2pc_sink.options.settings import kind_of, options_of
from tests.unit.options.test_sink_options import REQUIRED, URL

#: What is special to a URL, SQL, psycopg2, a shell, JSON, a regular expression, or a log.
SPECIAL = "\x00\x01\n\r\t\x1b\x7f\x85\u2028\ufeff\ud800\udfff%$:;,@/\\?#[]{}()*'\"`=& ._-aé\U0001f600"
TEXTS = st.text(st.sampled_from(SPECIAL), max_size=12) | st.text(max_size=12)


def is_text(item: Any) -> bool:
    kind = kind_of(item)
    return "str" in kind and not kind.startswith("Callable") and item.name != "kafka"


SINK_TEXTS = [item.name for item in options_of(SinkOptions) if is_text(item)]
RECOVERY_TEXTS = [item.name for item in fields(RecoveryOptions) if is_text(item)]
PROPERTIES = [name for name in property_names() if name != "oauth_cb"]


def shapes(text: str) -> list[Any]:
    """A text as an option may be given it."""
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


OPTIONS = {sink_option: SINK_TEXTS, recovery_option: RECOVERY_TEXTS, kafka_property: PROPERTIES}


@pytest.mark.parametrize("give", OPTIONS, ids=lambda give: give.__name__)
@given(data=st.data(), text=TEXTS)
def test_any_option_refuses_a_text_or_holds_it(give: Any, data: st.DataObject, text: str) -> None:
    give(data.draw(st.sampled_from(OPTIONS[give])), text)


@pytest.mark.parametrize("give", OPTIONS, ids=lambda give: give.__name__)
@pytest.mark.parametrize("text", ["a\x00b", "\ud800", "'\"$(`\n"], ids=["nul", "surrogate", "quotes"])
def test_each_option_refuses_a_text_or_holds_it(give: Any, text: str) -> None:
    for name in OPTIONS[give]:
        give(name, text)


@pytest.mark.parametrize("kind", [Records, Rows])
@given(text=TEXTS, place=st.integers(0, 40))
def test_an_output(kind: Any, text: str, place: int) -> None:
    names = [item.name for item in fields(kind) if is_text(item)]
    required = {"topic": "orders"} if kind is Records else {"table": "orders"}
    for value in shapes(text):
        refused_or_held(lambda value=value: kind(**{**required, names[place % len(names)]: value}))


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
    "value", ["a\x00b", "a\ud800b", ["a\x00b"], {"a": "a\x00b"}, {"a\udfffb": "a"}, Path("a\x00b")]
)
def test_what_no_text_has_is_refused_by_its_place(value: object) -> None:
    with pytest.raises(ConfigurationError, match=r"character 2 is U\+(0000|D800|DFFF), which PostgreSQL"):
        SinkOptions.parse(**{**REQUIRED, "columns": value})
    with pytest.raises(ConfigurationError, match="character 2 is"):
        KafkaOptions.parse({"bootstrap.servers": "h:9092", "client.id": value})


#: SQLAlchemy decodes the name of a database from 2.1 on, which Python 3.10 has not. Before, %00 is three characters.
NUL_IN_NAME = [URL + "%00"] if "\x00" in str(make_url(URL + "%00").database) else []


@pytest.mark.parametrize(
    "url", [*NUL_IN_NAME, "postgresql://u%00:p@h/d", "postgresql://u:%00@h/d", URL + "?options=%00"]
)
def test_a_url_says_nothing_that_libpq_cannot_be_told(url: str) -> None:
    """libpq ends a text at its NUL: another database, or a shorter password, would be meant."""
    with pytest.raises(ConfigurationError, match=r"^database.*='\*\*\*'.* is U\+0000") as raised:
        SinkOptions.parse(**{**REQUIRED, "database": url})
    assert "pass-word" not in str(raised.value)


@pytest.mark.parametrize("host", ["h ", "h\n", "\th", "h\x85"])
def test_a_host_is_seen_as_it_is(host: str) -> None:
    """A line break comes with a host that was read from a file; libpq would look for another one."""
    with pytest.raises(ConfigurationError, match="a host must not have a space"):
        SinkOptions.parse(**{**REQUIRED, "database": f"postgresql://u:p@{host}:5432/d"})
