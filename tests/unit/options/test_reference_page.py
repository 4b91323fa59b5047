"""One declaration of the options: the signature that users see and the page of the documentation are equal to it."""

from __future__ import annotations

import inspect
from typing import get_type_hints

from spark_2pc_sink import DualWriteSink
from spark_2pc_sink.options import CommonOptions, KafkaOptions, SinkOptions
from spark_2pc_sink.options.reference_page import OptionRow, reference


def rows(options: type[CommonOptions | KafkaOptions]) -> dict[str, OptionRow]:
    return {row.names[0]: row for row in reference(options)}


def test_the_signature_of_the_sink_is_the_declaration() -> None:
    """Names, order, types and defaults."""
    signature = inspect.signature(DualWriteSink).parameters.values()
    shown = [
        (item.name, item.annotation, None if item.default is item.empty else repr(item.default)) for item in signature
    ]
    assert shown == [(row.names[0], row.type, row.default) for row in reference(SinkOptions)]
    assert {item.kind for item in signature} == {inspect.Parameter.KEYWORD_ONLY}


def test_the_types_of_the_signature_can_be_looked_up() -> None:
    """Programs that build a command line or a form from it evaluate them."""
    assert get_type_hints(DualWriteSink.__init__)["batch_attempts_max"] is int


def test_a_row_is_what_a_reader_needs() -> None:
    kafka = rows(KafkaOptions)
    assert kafka["bootstrap.servers"].names == ("bootstrap.servers", "metadata.broker.list")
    assert kafka["bootstrap.servers"].default is None
    assert kafka["ssl.endpoint.identification.algorithm"].default == "'https'"
    assert (kafka["request.timeout.ms"].default, kafka["request.timeout.ms"].range) == ("30000", "1 to 86400000 ms")
    sink = rows(SinkOptions)
    assert str(sink["topic"]).startswith(r"| `topic` | `str \| None` | `None` | where rows go;")
    assert str(sink["database"]).startswith("| `database` | `str` | required | ")
    assert sink["mode"].type == "Literal['append', 'upsert', 'insert_ignore']"


def test_required_options_come_first_and_shared_ones_last() -> None:
    names = list(rows(SinkOptions))
    assert names[:4] == ["transactional_id", "kafka", "database", "topic"]
    common = rows(CommonOptions)
    assert names[-len(common) + 3 :] == list(common)[3:]
