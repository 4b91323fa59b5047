"""Every block of code on every page is tried: here, by mypy too, or by the test that is named for it.

Configurations are read here by the code that reads them, and commands by the real parsers. Python, SQL and commands run
in the tests that tests/harness/page_commands.py names. A block in a language without a check fails, and so does one
without a test.

A fragment leaves out what its reader has: ``...`` in a call stands for other options, and names that it does not make
are the reader's.
"""

from __future__ import annotations

import ast
import builtins
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from itertools import takewhile
from pathlib import Path
from typing import Final

import pytest

import spark_2pc_sink
from spark_2pc_sink.cli import command_parser
from spark_2pc_sink.options.sources import read_properties_file, read_toml_file
from spark_2pc_sink.reference.config.properties import BrokerProperties
from tests.harness.page_blocks import PAGES, ROOT, Block, blocks, in_sentences, without_dots
from tests.harness.page_commands import COMMANDS, NOT_RUN, PYTHON, SQL, check_command, who_runs

#: What a program prints, and pictures: first words, and who compares them with the program. Nothing here is typed.
SHOWN: Final = {
    ("docs/design/state.md", "none ──▶"): "a picture; the moves are in docs/reference/state-tables.md",
    ("docs/after-a-crash.md", "40 sinks:"): "tests/unit/cli/test_status.py",
    ("docs/check.md", "ok           brokers"): "tests/unit/cli/test_cli_commands.py",
    ("docs/cluster.md", "executors='node-1"): "tests/unit/sink/check/test_check_rules.py",
    ("docs/configuration.md", "orders.toml: tabel="): "tests/unit/docs/test_pages.py",
    ("docs/how-it-works.md", "none    ─┬─ "): "tests/unit/docs/test_pages.py",
    ("docs/history.md", "Time                  What"): "tests/unit/recovery/test_history.py",
    ("docs/logins.md", "spark.redaction.regex"): "a line of Spark's configuration",
    ("docs/verify.md", "orders: both sides are DIFFERENT"): "tests/unit/cli/test_cli_transactions.py",
}
#: Read by tests of their own, which fail if one is left out. Python is read by mypy, and runs as below.
ELSEWHERE: Final = {
    "answers": "tests/unit/docs/test_pages_that_are_run.py",
    "python": "tests/unit/docs/test_blocks.py",
    "sql": "tests/integration/docs/test_run_blocks.py",
    "{eval-rst}": "make docs",
}


def is_shown(block: Block) -> bool:
    return any(block.page == page and block.text.lstrip().startswith(words) for page, words in SHOWN)


#: All commands of the pages, each with its page once.
TYPED: Final = sorted(
    {(block.page, command) for block in blocks("", "console") if not is_shown(block) for command in block.commands}
)


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


@pytest.mark.parametrize("block", [each for each in blocks() if each.language not in ELSEWHERE], ids=str)
def test_a_block_is_what_its_reader_takes(block: Block, tmp_path: Path) -> None:
    assert block.language in CHECKS, f"{block}: no check of {block.language!r}"
    if not is_shown(block):
        CHECKS[block.language](block, tmp_path)


@pytest.mark.parametrize("block", list(blocks("python", "sql")), ids=str)
def test_a_program_is_run_by_one_test(block: Block) -> None:
    tables = {"python": PYTHON, "sql": SQL}
    fitting = [(page, part) for page, part in tables[block.language] if page == block.page and part in block.text]
    assert len(fitting) == 1, f"{block}: name the test that runs it in tests/harness/page_commands.py"


@pytest.mark.parametrize(("page", "command"), TYPED)
def test_a_command_is_run_by_one_test(page: str, command: str) -> None:
    """Or there is a reason why it cannot run."""
    assert len(who_runs(page, command)) == 1, f"{page}, {command}: name the test in tests/harness/page_commands.py"


@pytest.mark.parametrize(("page", "command"), in_sentences("spark-2pc", "make", "pip", "python"))
def test_a_command_in_a_sentence_is_one(page: str, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With the targets, extras, modules and flags that it names; it may be only the beginning of one."""
    program, *words = command.replace("COMMAND", "status").split()
    if program != "spark-2pc":
        check_command(" ".join([program, *(word for word in words if word != "…")]))
        return
    names = list(takewhile(lambda word: re.fullmatch("[a-z][a-z-]*", word), words))
    with pytest.raises(SystemExit) as ended:
        command_parser(names).parse_args([*names, "--help"])
    assert ended.value.code == 0
    help_of = capsys.readouterr().out
    assert set(re.findall(r"--[a-z-]+", command)) <= set(re.findall(r"--[a-z-]+", help_of)), page


def test_each_test_that_is_said_to_run_something_is_there() -> None:
    """It is in its file, which names the page or what is typed; and each entry is needed."""
    for (page, part), who in [*PYTHON.items(), *SQL.items()]:
        file, _, function = who.partition("::")
        text = (ROOT / file).read_text()
        assert all(each in text for each in (f"def {function}(", page.rpartition("/")[2], part)), who
    for (_, words), who in COMMANDS.items():
        file, _, function = who.partition("::")
        assert (f"def {function}(" if function else words) in (ROOT / file).read_text(), who
    wanted = {who for page, command in TYPED for who in who_runs(page, command)}
    assert {*COMMANDS.values(), *NOT_RUN.values()} - wanted == set()


def test_no_block_is_written_in_another_way() -> None:
    """Which nobody would find: between tildes, by a directive."""
    for page in PAGES:
        text = (ROOT / page).read_text()
        assert "~~~" not in text
        assert "code-block" not in text
        assert "literalinclude" not in text
        assert len(re.findall(r"^ *```", text, re.MULTILINE)) == 2 * sum(block.page == page for block in blocks())


_SETTINGS: Final = """\
[mypy]
check_untyped_defs = True
# A reader knows which values are there.
strict_optional = False
ignore_missing_imports = True
[mypy-pyspark.*,sqlalchemy.*,numpy.*,pyarrow.*,kafka.*,psycopg2.*,pandas.*,py4j.*,boto3.*,google.*,azure.*,prometheus_client.*]
follow_imports = skip
"""

#: Kept from run to run: mypy reads again what has changed.
CACHE: Final = ROOT / ".cache" / "mypy-of-pages"
#: Each has a mistake that mypy has to tell.
WRONG: Final = {
    "option": 'sink = DualWriteSink(..., bad_row="dead_letter")',
    "type": "sink = DualWriteSink(..., batch_attempts_max='many')",
    "import": "from spark_2pc_sink import Record",
    "attribute": "report = status(database='x', kafka={})\nprint(report.sink)",
    "missing": 'sink = DualWriteSink(transactional_id="orders")',
}


def program(text: str) -> str:
    """A block as a whole program for mypy, with what is imported and what is the reader's before it."""
    tree = without_dots(text)
    made = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    made |= {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    made |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    made |= {
        (alias.asname or alias.name).partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    head = ["from typing import Any", "_given: dict[str, Any] = {}"]
    head += [
        f"from spark_2pc_sink import {name}" if name in spark_2pc_sink.__all__ else f"{name}: Any = None"
        for name in sorted(used - made - set(dir(builtins)) - {"_given"})
    ]
    body = ast.unparse(tree)
    if any(isinstance(each, ast.AsyncWith) for each in tree.body):
        body = "async def page() -> None:\n" + "\n".join(f"    {line}" for line in body.splitlines())
    return "\n".join([*head, body, ""])


def mypy(folder: Path, texts: dict[str, str]) -> list[str]:
    """What mypy says of programs, with their names in place of their files."""
    (folder / "mypy.ini").write_text(_SETTINGS)
    files = {f"block_{number}": name for number, name in enumerate(texts)}
    for file, name in files.items():
        (folder / f"{file}.py").write_text(texts[name])
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--config-file=mypy.ini",
        f"--cache-dir={CACHE}",
        *(f"{file}.py" for file in files),
    ]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode in {0, 1}, done.stdout + done.stderr
    said = [line.partition(".py:") for line in done.stdout.splitlines() if ": error: " in line]
    return [f"{files[file]}: {error}" for file, _, error in said]


@pytest.mark.slow
def test_every_block_fits_the_package(tmp_path: Path) -> None:
    """Names, options, their types, attributes of results. One run of mypy, which gets wrong programs too."""
    right = {str(block): program(block.text) for block in blocks("python")}
    said = mypy(tmp_path, right | {name: program(text) for name, text in WRONG.items()})
    assert [line for line in said if line.partition(": ")[0] in right] == []
    assert {line.partition(": ")[0] for line in said} == set(WRONG)
