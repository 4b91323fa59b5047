"""One declaration of the options: the signature that users see and the page of the documentation are equal to it."""

from __future__ import annotations

import inspect
import pydoc
import re
from typing import get_type_hints

from spark_2pc_sink import DualWriteSink
from spark_2pc_sink.options import CommonOptions, KafkaOptions, SinkOptions
from spark_2pc_sink.options.reference_page import UNGROUPED, OptionRow, grouped, options_page, reference


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
    assert sink["topic"].entry("####") == (
        "#### `topic`\n\n`str | None`, default `None`. Since 1.0.0.\n\n"
        "Where rows go; a column named topic overrides it row by row."
    )
    assert sink["database"].entry("###", "Rows.").startswith("### `Rows.database`\n\n`str`, required. Since ")
    batches = sink["history_batches"].entry("####")
    assert "`int` (0 to 1000000), default `1000`. Since 1.0.0." in batches
    assert sink["mode"].type == "Literal['append', 'upsert', 'insert_ignore']"


def test_required_options_come_first_and_shared_ones_last() -> None:
    names = list(rows(SinkOptions))
    assert names[:4] == ["transactional_id", "kafka", "database", "topic"]
    common = rows(CommonOptions)
    assert names[-len(common) + 3 :] == list(common)[3:]


def test_the_page_has_one_entry_for_each_option_with_an_anchor_and_no_table() -> None:
    """A reader of a narrow screen sees its meaning; links to the entry keep to it."""
    page = options_page()
    entries = [match[1] for match in re.finditer(r"^###+ `([^`]+)`", page, re.MULTILINE)]
    assert len(set(entries)) == len(entries)
    assert {*rows(SinkOptions), *rows(KafkaOptions), "Records.where", "Rows.keys", "recover.dry_run"} <= set(entries)
    headings = re.findall(r"^###+ (.*)$", page, re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    assert set(re.findall(r"\]\(#([^)]+)\)", page)) <= anchors
    assert [line for line in page.splitlines() if line.startswith("|")] == []
    assert not re.search(r"[^\\]<", page), "HTML"


def test_help_names_all_options_by_the_groups_of_the_page() -> None:
    """What a reader wants to do; an option in no group is to be put into one, in reference_page.py."""
    shown, page = pydoc.plain(pydoc.render_doc(DualWriteSink)), options_page()
    assert UNGROUPED not in page
    for title, options in grouped(reference(SinkOptions)).items():
        section = shown.partition(f"**{title}**")[2].partition("**")[0]
        assert re.findall(r"- ``(\w+)``", section) == [row.names[0] for row in options]
        assert f"### {title}\n" in page
