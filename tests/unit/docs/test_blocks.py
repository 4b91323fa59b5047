"""Every block of code on every page is tried: here by what needs no server, or by the test that is named here.

What is Python is checked by mypy against the real package, commands by the real parsers, and configurations by the code
that reads them. A block in a language without a check fails.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from spark_2pc_sink.options.properties_file import read_properties_file
from spark_2pc_sink.options.toml_file import read_toml_file
from spark_2pc_sink.reference.config.properties import BrokerProperties
from tests.harness.page_blocks import ROOT, Block, blocks
from tests.harness.page_commands import check_command

#: What a program prints, and pictures: first words, and who compares them with the program. Nothing here is typed.
SHOWN: Final = {
    ("docs/design/state.md", "none ──▶"): "a picture; the moves are in docs/reference/state-tables.md",
    ("docs/after-a-crash.md", "40 sinks:"): "tests/unit/cli/test_status_text.py",
    ("docs/check.md", "ok           brokers"): "tests/unit/cli/test_cli_check.py",
    ("docs/cluster.md", "executors='node-1"): "tests/unit/sink/check/test_executor_side.py",
    ("docs/configuration.md", "orders.toml: tabel="): "tests/unit/docs/test_configuration_page.py",
    ("docs/how-it-works.md", "none    ─┬─ "): "tests/unit/docs/test_reference_pages.py",
    ("docs/history.md", "Time                  What"): "tests/unit/cli/test_cli_history.py",
    ("docs/logins.md", "spark.redaction.regex"): "a line of Spark's configuration",
    ("docs/verify.md", "orders: both sides are DIFFERENT"): "tests/unit/cli/test_cli_verify.py",
}
#: Read by tests of their own, which fail if one is left out.
ELSEWHERE: Final = {
    "answers": "tests/unit/docs/test_runbook_page.py",
    "python": "tests/unit/docs/test_python_blocks.py",
    "sql": "tests/integration/docs/test_run_blocks.py",
    "{eval-rst}": "make docs",
}


def check_shell(block: Block, _: Path) -> None:
    """Each line is a command with words that its program takes."""
    for command in block.commands:
        check_command(command)


def check_toml(block: Block, folder: Path) -> None:
    """It is read as the file of a sink: each option is one, and so is each Kafka property."""
    (folder / "sink.toml").write_text(block.text)
    read_toml_file(folder / "sink.toml", dict.fromkeys(re.findall(r"\$\{(\w+)", block.text), "text"))


def check_properties(block: Block, folder: Path) -> None:
    """It is read as the configuration of the reference coordinator."""
    (folder / "coordinator.properties").write_text(block.text)
    BrokerProperties.from_mapping(dict(read_properties_file(folder / "coordinator.properties", option="--config")))


def check_json(block: Block, _: Path) -> None:
    """It is one object."""
    assert isinstance(json.loads(block.text), dict)


CHECKS: Final[dict[str, Callable[[Block, Path], None]]] = {
    "": check_shell,
    "console": check_shell,
    "json": check_json,
    "jsonl": check_json,
    "properties": check_properties,
    "toml": check_toml,
}


def check(block: Block, folder: Path) -> None:
    """By its language; files are written into the folder."""
    CHECKS[block.language](block, folder)


def is_shown(block: Block) -> bool:
    return any(block.page == page and block.text.lstrip().startswith(words) for page, words in SHOWN)


@pytest.mark.parametrize("block", [each for each in blocks() if each.language not in ELSEWHERE], ids=str)
def test_a_block_is_what_its_reader_takes(block: Block, tmp_path: Path) -> None:
    assert block.language in CHECKS, f"{block}: no check of {block.language!r}"
    if not is_shown(block):
        check(block, tmp_path)


def test_what_is_said_to_be_shown_is_there() -> None:
    """Each entry is for one block, and the test that it names is a file."""
    texts = [(block.page, block.text.lstrip()) for block in blocks()]
    for (page, words), test in SHOWN.items():
        assert sum(page == where and text.startswith(words) for where, text in texts) == 1, words
        assert not test.startswith("tests/") or (ROOT / test).exists(), test
    assert all((ROOT / test).exists() for test in ELSEWHERE.values() if test.startswith("tests/"))
    assert {block.language for block in blocks()} <= {*CHECKS, *ELSEWHERE}


def test_a_block_that_nobody_checks_is_told(tmp_path: Path) -> None:
    """Each check can fail."""
    wrong = {
        "": ["spark-2pc stats", "make tset", "make test TEST=x", "frobnicate --now", "pip install '.[metric]'"],
        "console": ["$ python -m spark_2pc_sink.testing.kiled_job", "$ python examples/orders.py.py"],
        "json": ['["a"]'],
        "toml": ['tabel = "orders"\n'],
        "properties": ["no.such.property=1\n"],
    }
    for language, texts in wrong.items():
        for text in texts:
            with pytest.raises(Exception, match=r"."):
                check(Block("", 1, language, text), tmp_path)
