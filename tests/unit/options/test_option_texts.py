"""Texts of options: whatever is in them, it is refused by name, or every place that it goes to can hold it."""

from __future__ import annotations

import pickle
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

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
