"""The pages at the top and docs/: links lead somewhere, what they quote or name exists, and their words are plain."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tools.plain_english import findings

ROOT = Path(__file__).resolve().parents[3]
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
