"""Pages: links lead somewhere, and what they quote, name or show of the program is what the program has."""

from __future__ import annotations

import argparse
import ast
import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from spark_2pc_sink import DualWriteSink, errors
from spark_2pc_sink.cli import command_parser, output
from spark_2pc_sink.cli.options import CommandParser
from spark_2pc_sink.errors import ConfigurationError, DualWriteError, HaltCause
from spark_2pc_sink.options.outputs import Records, Rows
from spark_2pc_sink.options.sources import BOOTSTRAP_SERVER, COMMAND_CONFIG, CONFIG, read_environment, read_toml_file
from spark_2pc_sink.recipe.steps import Step
from tests.harness.json_contract import read_output
from tests.harness.page_blocks import ROOT
from tests.unit.cli.test_remedies import PLACEHOLDERS
from tools.plain_english import findings
from tools.reference_pages import pages
from tools.reference_pages.errors import errors_page

MANUAL = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("tests/*.md")), ROOT / "examples" / "README.md", *MANUAL]
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
_DATE = re.compile(r"2\d{3}-\d\d-\d\d|nightly")
_TEST = re.compile(r"`(?:([\w/]+\.py)|…)::(test_\w+)`")


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = re.sub("```.*?```", "", path.read_text(), flags=re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    """Those between pages, and to files of the project."""
    missing = []
    for link in _LINK.findall(_CODE.sub("", page.read_text())):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            missing.append(link)
    assert missing == []


def test_the_index_has_every_page() -> None:
    """Of its folder; the pages of a folder below are in the index there."""
    for index in ((ROOT / "docs/README.md"), (ROOT / "docs/design/README.md")):
        linked = {link.partition("#")[0] for link in _LINK.findall(index.read_text())}
        pages = {page.name for page in index.parent.glob("*.md")} - {index.name}
        assert pages - linked == set()


@cache
def texts_of_the_code() -> str:
    """Every text in the source of the packages, a line each; the parts of a formatted text are texts of their own."""
    sources = (path for package in ("spark_2pc_sink", "jdbc_state") for path in (ROOT / package).rglob("*.py"))
    nodes = (node for path in sources for node in ast.walk(ast.parse(path.read_text())))
    return "\n".join(node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))


def quotes() -> Iterator[str]:
    """What docs/after-a-crash.md and RUNBOOK.md say that a message says."""
    for page in ("docs/after-a-crash.md", "RUNBOOK.md"):
        for line in (ROOT / page).read_text().splitlines():
            if line.startswith('| "'):
                yield from re.findall('"([^"]+)"', line.split(" | ")[0])


@pytest.mark.parametrize("quote", sorted(set(quotes())))
def test_messages_are_quoted_as_they_are(quote: str) -> None:
    """But for what a message has in place of numbers and dots, with its noun."""
    parts = [part.strip() for part in re.split(r"(?:query|Kafka cluster|batch)? (?:…|\d+)", quote)]
    assert [part for part in parts if part not in texts_of_the_code()] == []


def test_every_kip_has_evidence_or_says_that_nothing_is_there() -> None:
    """A row without a test has no version and no date either."""
    lines = (ROOT / "docs/kip-by-kip.md").read_text().splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if re.match(r"\| \d", line)]
    named = {int(row[0].partition(",")[0]) for row in rows}
    assert named >= {98, 360, 447, 484, 516, 654, 664, 679, 714, 732, 890, 892, 932, 939, 1228, 1289, 1319}
    wrong = [
        row[0] for row in rows if row[2] != "none" and not (_TEST.search(row[2]) and row[3] and _DATE.match(row[4]))
    ]
    assert wrong == []


def named_tests() -> list[tuple[str, str]]:
    """The tests that pages name: file and function; after dots the file is that of the one before."""
    found = []
    for page in (*MANUAL, ROOT / "SECURITY.md"):
        module = ""
        for file, function in _TEST.findall(page.read_text()):
            module = file or module
            found.append((module, function))
    return found


@pytest.mark.parametrize(("module", "function"), sorted(set(named_tests())))
def test_tests_that_a_page_names_exist(module: str, function: str) -> None:
    assert f"def {function}(" in (ROOT / "tests" / module).read_text()


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        (
            "code.py",
            '"""Whoever reads.\n\nOf it."""\n\n\nclass Anew:  # by\n    # now, nobody\n    x = "all the same"\n',
            [(1, "whoever"), (3, "of"), (6, "by now"), (7, "nobody"), (8, "all the same")],
        ),
        (
            "page.md",
            'By now\n```\nnobody\n```\n`anew` "somebody" [x](anew.md)\n| Of these | a kind of\n',
            [(1, "by now"), (6, "of")],
        ),
    ],
)
def test_what_is_searched(tmp_path: Path, name: str, text: str, expected: list[tuple[int, str]]) -> None:
    path = tmp_path / name
    path.write_text(text)
    assert [(finding.line, finding.word) for finding in findings(path)] == expected


PAGE = (ROOT / "docs/command-line.md").read_text()
CONFIGURATION = (ROOT / "docs/configuration.md").read_text()


def table(header: str) -> dict[str, list[str]]:
    """The rows below a header of the page, by their first cell."""
    lines = PAGE.partition(f"{header}\n")[2].splitlines()[1:]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in lines[: next((at for at, line in enumerate(lines) if not line.startswith("|")), len(lines))]
    ]
    return {row[0]: row[1:] for row in rows}


def fenced(language: str, page: str) -> list[str]:
    """The code blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)


def documented(parser: argparse.ArgumentParser) -> Iterator[tuple[CommandParser, str]]:
    """Each command that has none below it, with its help."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for choice in action._choices_actions:
                child = action.choices[choice.dest.partition(" ")[0]]
                below = list(documented(child))
                yield from below or [(child, str(choice.help))]


def needs(parser: CommandParser) -> str:
    """Which sides the command takes."""
    flags = {flag for action in parser._actions for flag in action.option_strings}
    database = "--database" in flags
    may = database and not parser.get_default("database_required")
    kafka = "Kafka" if "--bootstrap-server" in flags else ""
    return ", ".join(side for side in (kafka, ("database (may)" if may else "database") if database else "") if side)


def test_the_commands_are_those_of_the_parsers() -> None:
    """With what they do, and which connections they take."""
    expected = {
        f"`{parser.command}`": [about, needs(parser) or "neither"] for parser, about in documented(command_parser([]))
    }
    assert table("| command | what it does | connects to |") == expected


def test_the_exit_codes_are_those_of_the_program() -> None:
    named = {f"`{value}`" for name, value in vars(output).items() if name.startswith("EXIT_")}
    assert set(table("| exit code | meaning |")) == named


def test_the_variables_and_what_a_person_must_fill_in_are_all_there() -> None:
    assert {name: flag for name, (flag,) in table("| variable | stands for |").items()} == {
        f"`SPARK_2PC_{name}`": f"`--{name.lower().replace('_', '-')}`"
        for name in (CONFIG, "DATABASE", BOOTSTRAP_SERVER, COMMAND_CONFIG)
    }
    assert set(table("| word | stands for |")) == {f"`{word}`" for word in PLACEHOLDERS}


def test_the_json_example_is_of_the_documented_form() -> None:
    (text,) = fenced("json", PAGE)
    example = read_output(text)
    assert (example["exit_code"], example["error"]["type"]) == (2, "ConfigurationError")


def test_the_file_of_the_page_makes_a_sink(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, writes = fenced("toml", CONFIGURATION)
    path = tmp_path / "orders.toml"
    path.write_text(file)
    monkeypatch.setenv("SHOP_PASSWORD", "a")
    monkeypatch.setenv("KAFKA_PASSWORD", "b")
    options = DualWriteSink.from_toml(path)._options
    assert (options.kafka.client_id, options.kafka.sasl_password, options.history_batches) == ("orders", "b", 5000)
    path.write_text(writes)
    assert [type(each) for each in read_toml_file(path).options["writes"]] == [Records, Rows]


def test_the_errors_of_the_page_are_those_of_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for line in ('tabel = "orders"', 'batch_attempts_max = "many"'):
        Path("orders.toml").write_text(
            'transactional_id = "o"\ntable = "t"\ndatabase = "postgresql://h/d"\n'
            f'{line}\n[kafka]\nbootstrap.servers = "h:1"\n'
        )
        with pytest.raises(ConfigurationError) as raised:
            DualWriteSink.from_toml("orders.toml")
        assert f"\n{raised.value}\n" in CONFIGURATION
    with pytest.raises(ConfigurationError) as raised:
        read_environment({"SPARK_2PC_KAFKA_SASL_PASWORD": "secret"})
    assert f"\n{raised.value}\n" in CONFIGURATION


def test_the_test_of_the_page_is_that_of_the_project() -> None:
    (shown,) = fenced("python", (ROOT / "docs/testing.md").read_text())
    path = ROOT / "examples" / "testing_project" / "test_job.py"
    assert path.read_text().partition("\n\n")[2] == shown


def test_the_steps_are_all_there() -> None:
    """In order, with KIP-939's recipe; and by their names, for tests of jobs."""
    lines = (ROOT / "docs/how-it-works.md").read_text().splitlines()
    rows = [line.split("|")[1].strip() for line in lines if line.startswith("| ")]
    first = rows.index("step") + 1
    assert rows[first : first + len(Step)] == [step.name.lower() for step in Step]
    page = (ROOT / "docs/testing.md").read_text()
    assert all(f"`{step.name}`" in page for step in Step)


@pytest.mark.parametrize("name", [*(f"docs/reference/{page}" for page in pages.PAGES), *pages.PARTS, *pages.PICTURES])
def test_a_page_is_what_the_code_makes(name: str) -> None:
    """Whole pages, parts of pages, and pictures. After a change: make reference-pages."""
    text = (ROOT / name).read_text()
    whole = {**{f"docs/reference/{page}": made for page, made in pages.PAGES.items()}, **pages.PICTURES}
    assert text == (whole[name]() if name in whole else pages.PARTS[name](text))


def test_every_error_is_public_and_has_what_to_do_and_every_cause_has_ways_on() -> None:
    page = errors_page()
    found = set(errors.__all__) - {"HaltCause"}
    classes = {name: value for name, value in vars(errors).items() if inspect.isclass(value)}
    assert found >= {name for name, value in classes.items() if issubclass(value, DualWriteError)}
    for name in found - {"DualWriteError"}:
        section = page.partition(f"### {name}\n")[2].partition("\n### ")[0]
        assert "*What to do:* " in section, name
    for cause in HaltCause:
        section = page.partition(f"### {cause.value}\n")[2].partition("\n### ")[0]
        assert "\n- " in section, cause
