"""What must never slip, checked on the source itself.

The direction of imports, purity of the packages that claim it, small functions and files, no silent handlers, no
forgotten notes, and that every source file has a test that imports it.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.harness.crossed_modules import crossed_modules, modules_called
from tests.unit.recovery.test_recovery import QUERY, Sides

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("spark_2pc_sink", "jdbc_state")
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
OTHERS = sorted(path for folder in ("examples", "benchmarks", "docker") for path in (ROOT / folder).rglob("*.py"))

FUNCTION_LINES_MAX = 70
#: Of a constructor below the public face; `test_constructors_take_few_arguments` says what counts.
ARGUMENTS_MAX = 6
#: What users call with keywords, one for each option.
PUBLIC_CONSTRUCTORS = {"DualWriteSink", "ServiceBase"}
FILE_LINES_MAX = 600
#: A file with fewer lines and one user is listed here with its reason.
FILE_LINES_MIN = 150
SMALL_WITH_ONE_USER = {
    "spark_2pc_sink.logins.oidc": "HTTP of an OAuth server, apart from what a token is to Kafka",
    "spark_2pc_sink.reference.broker": "assembles the coordinator, which the command line only calls",
    "spark_2pc_sink.reference.metrics": "the figures of the coordinator, which a page lists",
    "spark_2pc_sink.sink.job.search_task": "tasks load it, without the code of the driver for the database",
    "spark_2pc_sink.sink.job_end": "public: only the package itself exports it",
    "spark_2pc_sink.testing.reaper": "a program of its own, which runs without the package",
}
#: Of the modules of ours that a task which encodes rows loads.
TASK_LINES_MAX = 6_000
#: Modules that rows cross, and a recovery; `tests.harness.crossed_modules` says what counts.
ROW_MODULES_MAX = 15
RECOVERY_MODULES_MAX = 10
#: A test file may list more cases than its source file has lines.
TEST_FILE_LINES_MAX = 600

#: Bytes in, bytes out: time, chance and the outside world come as arguments.
PURE_PACKAGES = (
    "spark_2pc_sink/choices",
    "spark_2pc_sink/recipe",
    "spark_2pc_sink/reference/coordinator",
    "spark_2pc_sink/wire",
)
IMPURE_MODULES = {
    "asyncio",
    "concurrent",
    "logging",
    "multiprocessing",
    "os",
    "pathlib",
    "queue",
    "random",
    "sched",
    "secrets",
    "select",
    "selectors",
    "signal",
    "socket",
    "ssl",
    "subprocess",
    "tempfile",
    "threading",
    "time",
    "uuid",
}
#: Spelt in two halves, so that this file does not contain them.
FORGOTTEN_NOTES = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b")
#: Underscored names of libraries that their documentation has (named tuples, SQLAlchemy's rows, argparse's types in
#: typeshed, librdkafka's own error codes), and those without which there is no way: PySpark's to its JVM, and
#: kafka-python's to a schema that is not of a message.
LIBRARY_NAMES = re.compile(
    r"_(make|replace|mapping|SubParsersAction|ActionsContainer|[A-Z_]+|jvm|jdf|jsc|jsparkSession|struct)"
)
#: What a file has that may touch one: an underscore after something else than self, or an attribute by its name.
MAYBE_PRIVATE = re.compile(r"(?<!\bself)(?<!\bcls)\._[^_]|\b[gsh][ea][ts]attr\(")
ATTRIBUTE_CALLS = {"getattr", "setattr", "hasattr"}
#: A handler of everything that has no body.
SUPPRESSED = re.compile(r"\bsuppress\(\s*(?:Base)?Exception\b[^)]*\)")


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module: str) -> str:
    """``spark_2pc_sink.sink`` for ``spark_2pc_sink.sink.job.run_record``; ``jdbc_state`` is one room."""
    return ".".join(module.split(".")[: 1 if module.startswith("jdbc_state") else 2])


class Facts(NamedTuple):
    """What the tests ask of a source file.

    Attributes:
        imports: every import, also inside functions: (module, name) of a from-import, (module, None) else.
        functions: their names and how many lines they have.
        handlers: of exceptions.
        classes: their names and how many arguments their constructors have.
    """

    imports: list[tuple[str, str | None]]
    functions: list[tuple[str, int]]
    handlers: list[ast.ExceptHandler]
    classes: list[tuple[str, int]]


def arguments_of(node: ast.ClassDef) -> int:
    """How many arguments its constructor has; 0 for a frozen dataclass and an error of fields."""
    count = 0
    kinds = [ast.unparse(decorator) for decorator in node.decorator_list if "dataclass" in ast.unparse(decorator)]
    if kinds and "frozen=True" not in kinds[0] and not any("Error" in ast.unparse(base) for base in node.bases):
        count = sum(isinstance(part, ast.AnnAssign) and part.value is None for part in node.body)
    for part in node.body:
        if isinstance(part, ast.FunctionDef) and part.name == "__init__":
            count = len(part.args.args) + len(part.args.kwonlyargs) - 1
    return count


@cache
def facts_of(path: Path) -> Facts:
    """Read a file once.

    The tree is not kept: those of all files are a million objects, through which each garbage collection goes.
    """
    found = Facts([], [], [], [])
    waiting: list[ast.AST] = [ast.parse(path.read_text(), filename=str(path))]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            found.imports.extend((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.imports.extend((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.functions.append((node.name, (node.end_lineno or node.lineno) - node.lineno + 1))
        elif isinstance(node, ast.ExceptHandler):
            found.handlers.append(node)
        elif isinstance(node, ast.ClassDef):
            found.classes.append((node.name, arguments_of(node)))
        # No expression has any of these in it, and expressions are most of a file.
        waiting += (part for part in ast.iter_child_nodes(node) if not isinstance(part, ast.expr))
    return found


def imports_of(path: Path) -> list[tuple[str, str | None]]:
    return facts_of(path).imports


@pytest.mark.parametrize(
    ("module", "unloaded"),
    [
        ("jdbc_state", {"pyspark", "kafka", "confluent_kafka", "pyarrow"}),
        ("spark_2pc_sink.producer", {"pyspark", "sqlalchemy", "psycopg2"}),
        ("spark_2pc_sink.cli.serving", {"pyspark", "pyarrow", "numpy", "sqlalchemy", "prometheus_client"}),
        ("spark_2pc_sink.testing", {"pyspark", "kafka", "sqlalchemy"}),
    ],
)
def test_importing_a_package_first_loads_only_what_it_needs(module: str, unloaded: set[str]) -> None:
    """Also finds circles: each package can be the first that a program imports."""
    script = f"import {module}, sys; print(*sorted({unloaded!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr, done.stdout.split()) == (0, "", [])


def test_a_task_loads_a_small_part_of_the_product() -> None:
    """A worker of Spark's may start for each task, and whoever changes what a task does has this much to read."""
    script = (
        "import sys, pathlib, spark_2pc_sink.sink.job.encode_task, spark_2pc_sink.sink.job.task_plan;"
        f"files = [module.__file__ for name, module in sys.modules.items() if name.startswith({PACKAGES!r})];"
        "print(sum(len(pathlib.Path(file).read_text().splitlines()) for file in files))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert int(done.stdout) <= TASK_LINES_MAX


def test_rows_cross_few_modules() -> None:
    """Who changes what becomes of a row reads these."""
    assert len(crossed_modules()) <= ROW_MODULES_MAX


def test_a_recovery_crosses_few_modules() -> None:
    """Of a batch that was decided and not completed."""
    sides = Sides()
    sides.decide(sides.start())
    recovery = sides.recovery()
    assert len(modules_called(lambda: recovery.run(query_id=QUERY, run_id="next"))) <= RECOVERY_MODULES_MAX


def test_pure_packages_have_no_clock_no_chance_and_no_outside_world() -> None:
    pure = [path for path in SOURCES if name_of(path).startswith(PURE_PACKAGES)]
    found = {name_of(path): {module.partition(".")[0] for module, _ in imports_of(path)} for path in pure}
    assert {name: modules & IMPURE_MODULES for name, modules in found.items() if modules & IMPURE_MODULES} == {}


def homes() -> dict[tuple[str, str], str]:
    """Where the names that packages export come from: (package, name) to module."""
    found = {}
    for path in SOURCES:
        if path.name == "__init__.py":
            for module, name in imports_of(path):
                if name is not None:
                    found[module_of(path), name] = module
    return found


def test_every_source_file_is_imported_by_a_test() -> None:
    """Itself, by a name that its package exports, or as a part of a module of the same room that is."""
    exported = homes()
    tested: set[str] = set()
    for path in TESTS:
        for module, name in imports_of(path):
            tested |= {module, f"{module}.{name}", exported.get((module, name or ""), "")}
    sources = {module_of(path): path for path in SOURCES if path.name != "__init__.py"}
    waiting = sorted(tested & sources.keys())
    while waiting:
        module = waiting.pop()
        for imported, name in imports_of(sources[module]):
            for part in {imported, f"{imported}.{name}"} & sources.keys() - tested:
                if room_of(part) == room_of(module):
                    tested.add(part)
                    waiting.append(part)
    assert sorted(sources.keys() - tested) == []


def test_files_have_one_subject() -> None:
    found = {path: len(path.read_text().splitlines()) for path in (*SOURCES, *TESTS, *OTHERS)}
    long = {
        name_of(path): f"{lines} lines"
        for path, lines in found.items()
        if lines > (TEST_FILE_LINES_MAX if path in TESTS else FILE_LINES_MAX)
    }
    assert long == {}


def test_a_small_file_has_several_users() -> None:
    """Else it belongs into the file of its one user, or has a reason to be apart."""
    modules = {module_of(path): path for path in SOURCES if not path.name.startswith("__")}
    users: dict[str, set[str]] = {module: set() for module in modules}
    for path in SOURCES:
        for module, name in imports_of(path):
            for used in {module, f"{module}.{name}"} & modules.keys():
                users[used].add(module_of(path))
    small = {module for module, path in modules.items() if len(path.read_text().splitlines()) < FILE_LINES_MIN}
    assert {module for module in small if len(users[module]) == 1} == SMALL_WITH_ONE_USER.keys()


def test_classes_of_the_product_have_names_of_their_own() -> None:
    modules: dict[str, list[str]] = {}
    for path in SOURCES:
        for name, _ in facts_of(path).classes:
            if not name.startswith("_"):
                modules.setdefault(name, []).append(module_of(path))
    assert {name: places for name, places in modules.items() if len(places) > 1} == {}


def test_functions_are_small() -> None:
    long = {
        f"{name_of(path)}::{name}": f"{lines} lines"
        for path in (*SOURCES, *TESTS, *OTHERS)
        for name, lines in facts_of(path).functions
        if lines > FUNCTION_LINES_MAX
    }
    assert long == {}


def test_constructors_take_few_arguments() -> None:
    """What is passed on together is a value with a name.

    A frozen dataclass is such a value, and so is an error: their fields are not counted. Of another dataclass those are
    that have no default, since the others are what becomes of it.
    """
    found = {name for path in SOURCES for name, count in facts_of(path).classes if count > ARGUMENTS_MAX}
    assert found - PUBLIC_CONSTRUCTORS == set()


def catches_everything(handler: ast.ExceptHandler) -> bool:
    types = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(kind is None or ast.unparse(kind) in {"Exception", "BaseException"} for kind in types)


def only_logs(statement: ast.stmt) -> bool:
    """True for pass, ``...``, continue, and calls of a logger, of print and of warnings.warn."""
    if isinstance(statement, ast.Pass | ast.Continue):
        return True
    if not isinstance(statement, ast.Expr):
        return False
    if isinstance(statement.value, ast.Call):
        return re.search(r"log|print|warn", ast.unparse(statement.value.func), re.IGNORECASE) is not None
    return isinstance(statement.value, ast.Constant)


def test_no_handler_of_everything_does_nothing_about_it() -> None:
    """A handler of every exception that goes on as if nothing had happened, in either spelling."""
    silent = []
    for path in (*SOURCES, *OTHERS):
        handlers = [each for each in facts_of(path).handlers if catches_everything(each)]
        silent += [f"{name_of(path)}:{each.lineno}" for each in handlers if all(map(only_logs, each.body))]
        silent += [f"{name_of(path)}: {found}" for found in SUPPRESSED.findall(path.read_text())]
    assert silent == []


def private_uses(path: Path) -> list[str]:
    """Uses of a name with an underscore that this file does not define: it is private to a library, or another file."""
    text = path.read_text()
    if not MAYBE_PRIVATE.search(text):
        return []
    tree = ast.parse(text)
    defined = {
        getattr(node, "name", getattr(node, "id", getattr(node, "attr", "")))
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        or isinstance(getattr(node, "ctx", None), ast.Store)
    }
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and not (
            isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"}
        ):
            name = node.attr
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ATTRIBUTE_CALLS:
            name = str(getattr(node.args[1], "value", ""))
        else:
            continue
        if re.match("_[^_]", name) and name not in defined and not LIBRARY_NAMES.fullmatch(name):
            found.append(f"{name_of(path)}:{node.lineno} {ast.unparse(node)}")
    return found


def test_no_private_member_of_a_library_is_touched() -> None:
    """Who needs one keeps a fork without its source: any release may take it away."""
    assert [found for path in SOURCES for found in private_uses(path)] == []


def test_no_forgotten_notes() -> None:
    found = [
        f"{name_of(path)}: {line}"
        for path in (*SOURCES, *TESTS, *OTHERS)
        for line in path.read_text().splitlines()
        if FORGOTTEN_NOTES.search(line)
    ]
    assert found == []
