"""Checks of what pages have a reader type, and the test that runs each block and command, or the reason why none can.

tests/unit/docs/test_blocks.py fails where something is in no table. What only a person reads (a picture, what a program
prints) is in its own table there, with who compares it.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
from collections.abc import Callable, Sequence
from itertools import dropwhile, pairwise
from typing import Final

import yaml
from packaging.requirements import Requirement

from spark_2pc_sink.cli import command_parser
from tests.harness.page_blocks import ROOT, blocks

#: What a page writes in place of the reader's own.
_OWN: Final = {
    "P": "0",
    "N": "0",
    "T": "topic",
    "ID": "id",
    "URL": "postgresql://db/shop",
    "…": "--bootstrap-server host:9092 --database postgresql://db/shop",
}
#: Programs of others: tests/harness/page_commands.py has who runs them, or why nobody can.
_OF_OTHERS: Final = {"cd", "cp", "kafka-acls.sh", "kafka-topics.sh", "pre-commit", "spark-submit", "tar"}
_VARIABLE: Final = re.compile(r"[A-Z_0-9]+=")
_MAKEFILE: Final = (ROOT / "Makefile").read_text()
_PROJECT: Final = (ROOT / "pyproject.toml").read_text()


def check_command(line: str) -> None:
    """One line of a shell: each command of it, but for what it is piped into."""
    for part in line.partition(" | ")[0].strip("()").split("&&"):
        words = shlex.split(" ".join(_OWN.get(word, word) for word in part.split()))
        # Variables of the command's environment come before it.
        words = list(dropwhile(_VARIABLE.match, words))
        program = words[0].rpartition("/bin/")[2]
        assert program in PROGRAMS or program in _OF_OTHERS, f"nobody checks {program!r}: {line}"
        PROGRAMS.get(program, _others)(words[1:])


def _others(words: Sequence[str]) -> None:
    """Nothing is known of them."""


def _spark_2pc(words: Sequence[str]) -> None:
    assert callable(command_parser(words).parse_args(words).run)


def _make(words: Sequence[str]) -> None:
    targets = set(re.findall(r"^([\w-]+):(?!=)", _MAKEFILE, re.MULTILINE))
    variables = set(re.findall(r"^([A-Z]+) \?=", _MAKEFILE, re.MULTILINE))
    for word in words:
        name, assigned, value = word.partition("=")
        assert name in (variables if assigned else targets), word
        assert name != "TESTS" or (ROOT / value).exists(), word


def _pip(words: Sequence[str]) -> None:
    """Our own extras, and wheels of ours; requirements of others have the form of one."""
    assert words[0] in {"install", "wheel"}
    for word in words[1:]:
        if word.startswith((".", "spark-2pc-sink", "dist/spark_2pc_sink-")):
            extras = re.findall(r"[\w-]+", word.partition("[")[2])
            assert all(f"\n{extra} = [" in _PROJECT for extra in extras), word
        elif not word.startswith("-") and word != "dist":
            Requirement(word)


def _python(words: Sequence[str]) -> None:
    """A module that there is, a file of the project, or one that a page shows."""
    if words[0] == "-m":
        assert importlib.util.find_spec(words[1]) is not None, words
    elif not any(f"`{words[0]}`" in (ROOT / block.page).read_text() for block in blocks("python")):
        assert (ROOT / words[0]).exists(), words


def _docker(words: Sequence[str]) -> None:
    compose = yaml.safe_load((ROOT / words[words.index("-f") + 1]).read_text())
    profiles = {name for service in compose["services"].values() for name in service.get("profiles", [])}
    assert words[0] == "compose"
    assert {after for before, after in pairwise(words) if before == "--profile"} <= profiles


def _bash(words: Sequence[str]) -> None:
    assert (ROOT / words[0]).exists(), words


PROGRAMS: Final[dict[str, Callable[[Sequence[str]], None]]] = {
    "spark-2pc": _spark_2pc,
    "make": _make,
    "pip": _pip,
    "python": _python,
    "docker": _docker,
    "bash": _bash,
    "tools/containers.sh": _others,
}


_PAGES: Final = "tests/integration/docs/test_run_blocks.py"
_WITH_OTHERS: Final = "tests/integration/docs/test_other_programs.py"
_LOGINS: Final = "tests/unit/docs/test_pages_that_are_run.py"
_COMMANDS: Final = "tests/integration/docs/test_page_commands.py"
_INCIDENTS: Final = "tests/integration/incidents/test_choices.py"
_TUTORIAL: Final = "tests/integration/docs/test_tutorial.py::test_the_tutorial_does_what_it_says"
#: It runs the programs that `make demo` does.
_DEMO: Final = (
    "tests/integration/examples/test_own_servers.py::test_the_demo_kills_the_job_and_both_sides_are_equal_in_the_end"
)
#: With the file that tests/unit/docs/test_pages.py compares with the page.
_TESTING_PROJECT: Final = (
    "tests/integration/testing/test_servers.py::test_the_project_and_the_plugin_work_from_the_wheel"
)
_PERMISSIONS: Final = "tests/integration/sink/test_check.py"
_CI: Final = ".ci/run"
_TO_EXECUTORS: Final = (
    "pip wheel",
    "cp dist/",
    "python -m venv",
    "environment/bin/pip",
    "(cd environment",
    "/opt/spark-python/bin/",
    "spark-submit",
)
_CLUSTER: Final = "tests/integration/docs/test_tutorial.py::test_what_brings_the_package_to_executors"

#: Python, by page and by something that is in one block of it alone; '' for all blocks of the page.
PYTHON: Final = {
    ("README.md", ""): "tests/integration/docs/test_first_job.py::test_the_first_job_of_the_readme",
    ("RUNBOOK.md", ""): f"{_INCIDENTS}::test_the_runbook_alone_ends_it",
    ("docs/bad-rows.md", ""): f"{_PAGES}::test_bad_rows",
    ("docs/check.md", ""): f"{_PAGES}::test_a_job_of_ones_own",
    ("docs/configuration.md", ""): f"{_PAGES}::test_the_options_of_a_file",
    ("docs/connect.md", ""): "tests/integration/connect/test_connect.py::test_the_job_of_the_page",
    ("docs/from-spark-sinks.md", ""): f"{_PAGES}::test_before_and_after",
    ("docs/history.md", ""): f"{_PAGES}::test_a_job_of_ones_own",
    ("docs/logins.md", "my_company"): f"{_LOGINS}::test_a_token_of_ones_own",
    ("docs/logins.md", "DefaultAzureCredential"): f"{_LOGINS}::test_a_token_of_entra",
    ("docs/logins.md", "GOOG_OAUTH2_TOKEN"): f"{_LOGINS}::test_a_token_of_google",
    ("docs/logins.md", "generate_db_auth_token"): f"{_LOGINS}::test_a_token_of_rds",
    ("docs/metrics.md", ""): f"{_PAGES}::test_counted_batches",
    ("docs/outputs.md", ""): "tests/integration/sink/test_outputs.py::test_one_decision_writes_all",
    ("docs/reading.md", '"group.id": "billing"'): f"{_WITH_OTHERS}::test_a_consumer",
    ("docs/reading.md", "import ShareConsumer"): f"{_WITH_OTHERS}::test_a_share_group",
    ("docs/reading.md", "spark.readStream"): f"{_WITH_OTHERS}::test_spark",
    ("docs/reading.md", "def read_both"): f"{_WITH_OTHERS}::test_both_sides_under_a_running_job",
    ("docs/reference-coordinator.md", ""): f"{_PAGES}::test_the_servers_of_the_page_start",
    ("docs/scheduling.md", "run_until_stopped"): f"{_WITH_OTHERS}::test_the_exit_codes_of_the_page",
    ("docs/scheduling.md", "AirflowFailException"): f"{_WITH_OTHERS}::test_airflow_tries_again_where_that_helps",
    ("docs/service.md", ""): f"{_PAGES}::test_the_service_of_the_page_writes_both_sides",
    ("docs/testing.md", ""): _TESTING_PROJECT,
    ("docs/tutorial.md", ""): _TUTORIAL,
    ("docs/using.md", ""): f"{_PAGES}::test_a_job_of_ones_own",
    ("docs/verify.md", ""): f"{_PAGES}::test_a_job_of_ones_own",
    ("docs/writer.md", ""): f"{_PAGES}::test_the_example_of_the_page",
}

#: SQL, as above.
SQL: Final = {
    ("docs/bad-rows.md", ""): f"{_PAGES}::test_bad_rows",
    ("docs/permissions.md", ""): f"{_PERMISSIONS}::test_the_rights_that_readme_lists_are_enough",
    ("docs/reading.md", ""): f"{_WITH_OTHERS}::test_logical_replication",
}

#: Commands, by page and by their first words: the longest that fit. '' is any page, or any command.
COMMANDS: Final = {
    ("", "spark-2pc"): f"{_COMMANDS}::test_what_is_asked_about_a_sink",
    ("", "spark-2pc check orders.toml --schema"): f"{_COMMANDS}::test_a_check_with_a_schema",
    ("", "spark-2pc coordinator"): f"{_COMMANDS}::test_what_serves",
    ("", "spark-2pc dashboard"): f"{_COMMANDS}::test_what_serves",
    ("", "spark-2pc exporter"): f"{_COMMANDS}::test_what_serves",
    ("", "spark-2pc transactions"): f"{_COMMANDS}::test_a_transaction_that_hangs",
    ("", "spark-2pc verify --config orders.toml --table paid_orders"): f"{_COMMANDS}::test_one_table_of_several",
    ("", "kafka-acls.sh"): f"{_COMMANDS}::test_tools_of_kafka",
    ("", "kafka-topics.sh"): f"{_COMMANDS}::test_tools_of_kafka",
    ("", "pip install ."): f"{_COMMANDS}::test_what_pip_installs",
    ("", 'pip install ".['): f"{_COMMANDS}::test_what_pip_installs",
    ("", "pip install --no-deps ."): f"{_COMMANDS}::test_what_pip_installs",
    ("", "make help"): f"{_COMMANDS}::test_the_targets",
    **dict.fromkeys([("docs/cluster.md", words) for words in _TO_EXECUTORS], _CLUSTER),
    ("docs/connect.md", "python tools/"): _CLUSTER,
    ("RUNBOOK.md", ""): f"{_INCIDENTS}::test_the_runbook_alone_ends_it",
    ("docs/tutorial.md", "python "): _TUTORIAL,
    ("docs/tutorial.md", "spark-2pc"): _TUTORIAL,
    ("", "make demo"): _DEMO,
    ("examples/README.md", "python examples/orders_"): _DEMO,
    # These files run the command as it stands.
    ("", "make docs"): _CI,
    ("", "make lint"): _CI,
    ("", "make links"): ".github/workflows/nightly.yml",
    ("", "make setup"): _CI,
    ("", "make site"): _CI,
    ("", "make test"): ".github/workflows/ci.yml",
    ("", "make test-all"): _CI,
    ("", "make test-fast"): ".github/workflows/ci.yml",
    ("", "make verify-types"): _CI,
}

#: Commands that cannot run here, as above. Their words are looked at all the same: tests/harness/page_commands.py.
NOT_RUN: Final = {
    ("", ".venv/bin/python -m pytest"): "whoever runs the tests has run it",
    ("", "docker compose"): "needs a container engine and images from a registry; the file is read, and its profiles",
    ("docs/connect.md", "pip install pyspark-client"): "downloads; make other-pythons installs what this line names",
    ("docs/logins.md", "KRB5_CLIENT_KTNAME="): "needs a realm, which writer/test_kerberos.py has; it renews tickets so",
}


def who_runs(page: str, command: str) -> list[str]:
    """The test that runs a command of a page, or why none does: of the entries that fit, those with the most words."""
    every = [*COMMANDS.items(), *NOT_RUN.items()]
    fitting = [
        (bool(where), len(words), who)
        for (where, words), who in every
        if where in {"", page} and _begins_with(command, words)
    ]
    longest = max(((own, length) for own, length, _ in fitting), default=(False, 0))
    return [who for own, length, who in fitting if (own, length) == longest]


def _begins_with(command: str, words: str) -> bool:
    """A word that goes on is another word, but after a sign: ``make test-all`` is no ``make test``."""
    rest = command[len(words) :]
    return command.startswith(words) and (not rest or rest[0] == " " or not words[-1:].isalnum())
