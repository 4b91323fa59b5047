"""What --write-missing writes is applied by the commands that it prints, and both sides are the same again."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from sqlalchemy import make_url

from spark_2pc_sink.testing import CapabilityError, read_topic
from spark_2pc_sink.testing.postgres import find_binaries
from spark_2pc_sink.verification.repairs import PAGE, RECORDS
from tests.conftest import or_skip
from tests.harness.kafka_tools import make_scripts
from tests.harness.written_pair import TABLE
from tests.integration.verification.conftest import BATCHES, MakePair

pytestmark = pytest.mark.java

DEADLINE_S = 120
#: Rows that somebody has put into the table alone.
BY_HAND = [(50_000, "by hand: tab\t, \"quotes\", 'single', back\\slash, break\n, 漢字"), (50_001, None)]


class OperatorShell:
    """Runs a page's commands as an operator would, with the programs that they name on its path."""

    def __init__(self, folder: Path, database: str) -> None:
        programs = folder / "programs"
        programs.mkdir()
        make_scripts(programs)
        if not (find_binaries() / "psql").exists():
            raise CapabilityError(f"no psql in {find_binaries()}")
        self._environment = {
            **os.environ,
            "PATH": f"{programs}:{find_binaries()}:{os.environ['PATH']}",
            "PGPASSWORD": str(make_url(database).password),
        }

    def run(self, page: Path, program: str, file: str = "") -> list[str]:
        """Run the commands of a page that begin with a program's name, and name the file; they are returned."""
        lines = [line for line in page.read_text().splitlines() if line.startswith(f"    {program} ")]
        commands = [line.strip() for line in lines if file in line]
        for command in commands:
            done = subprocess.run(
                ["sh", "-c", command],
                cwd=page.parent,
                env=self._environment,
                capture_output=True,
                text=True,
                timeout=DEADLINE_S,
                check=False,
            )
            assert done.returncode == 0, done.stderr
        return commands


@pytest.fixture
def shell(pytestconfig: pytest.Config, tmp_path: Path, database: str) -> OperatorShell:
    return or_skip(pytestconfig, lambda: OperatorShell(tmp_path, database))


def test_what_either_side_lacks_is_put_back_by_the_printed_commands(
    make_pair: MakePair, shell: OperatorShell, tmp_path: Path
) -> None:
    """And the table is made like Kafka where they differ."""
    pair = make_pair(upsert=True)
    pair.write(*BATCHES)
    pair.sql(f"DELETE FROM {TABLE} WHERE id BETWEEN 1000 AND 1006")
    pair.sql(f"UPDATE {TABLE} SET payload = NULL WHERE id BETWEEN 3000 AND 3004")
    for row in BY_HAND:
        pair.sql(f"INSERT INTO {TABLE} VALUES (%s, %s)", *row)
    report = pair.verify(write_missing=tmp_path / "files")
    assert dict(report.counts) == {"missing_in_table": 7, "missing_in_kafka": 2, "differing": 5}, str(report)
    page = tmp_path / "files" / PAGE
    assert str(page) in report.written
    assert len(shell.run(page, "psql")) == 2
    assert dict(pair.verify().counts) == {"missing_in_kafka": 2}
    assert len(shell.run(page, "kafka-console-producer.sh", RECORDS["missing"])) == 1
    again = pair.verify(table_only=True)
    assert again.verdict == "same", str(again)
    keys = [record.key for record in read_topic(pair.broker.bootstrap, pair.topic)]
    assert {b"50000", b"50001"} <= set(keys)
