"""An option is declared once: signatures, help, the page, files, variables, flags, layout and errors follow from it."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest

from spark_2pc_sink.cli.command_parser import CommandParser
from spark_2pc_sink.cli.options import add_sink_options
from spark_2pc_sink.options import CommonOptions, KafkaOptions, SinkOptions, checks_keywords, sources
from spark_2pc_sink.options.settings import Theme, options_of, options_text, setting, setting_of
from tools.reference_pages import options as pages


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
