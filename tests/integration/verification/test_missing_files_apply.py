"""What --write-missing writes is applied by the commands that it prints, and both sides are the same again."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from sqlalchemy import make_url

from spark_2pc_sink.testing import CapabilityError, read_topic
from spark_2pc_sink.testing.postgres import find_binaries
from spark_2pc_sink.verification.repairs import PAGE
from tests.conftest import or_skip
from tests.harness.kafka_tools import make_scripts
from tests.harness.written_pair import TABLE, WrittenPair
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

    def run(self, page: Path, program: str) -> list[str]:
        """Run the commands of a page that begin with a program's name; they are returned."""
        commands = [line.strip() for line in page.read_text().splitlines() if line.startswith(f"    {program} ")]
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
    pair: WrittenPair, shell: OperatorShell, tmp_path: Path
) -> None:
    pair.sql(f"DELETE FROM {TABLE} WHERE id BETWEEN 1000 AND 1006")
    for row in BY_HAND:
        pair.sql(f"INSERT INTO {TABLE} VALUES (%s, %s)", *row)
    report = pair.verify(write_missing=tmp_path / "files")
    assert dict(report.counts) == {"missing_in_table": 7, "missing_in_kafka": 2}, str(report)
    page = tmp_path / "files" / PAGE
    assert str(page) in report.written
    assert len(shell.run(page, "psql")) == 1
    assert dict(pair.verify().counts) == {"missing_in_kafka": 2}
    assert len(shell.run(page, "kafka-console-producer.sh")) == 1
    again = pair.verify(table_only=True)
    assert again.verdict == "same", str(again)
    keys = [record.key for record in read_topic(pair.broker.bootstrap, pair.topic)]
    assert {b"50000", b"50001"} <= set(keys)


def test_the_table_is_made_like_kafka_by_the_printed_commands(
    pair: WrittenPair, shell: OperatorShell, tmp_path: Path
) -> None:
    pair.sql(f"UPDATE {TABLE} SET payload = NULL WHERE id BETWEEN 3000 AND 3004")
    report = pair.verify(write_missing=tmp_path / "files")
    assert dict(report.counts) == {"differing": 5}, str(report)
    assert len(shell.run(tmp_path / "files" / PAGE, "psql")) == 1
    assert pair.verify().same


def test_kafka_is_made_like_the_table_by_the_printed_commands(
    make_pair: MakePair, shell: OperatorShell, tmp_path: Path
) -> None:
    """Of an upserted table, whose readers take the last record of a key; what is appended cannot be taken back."""
    pair = make_pair(upsert=True)
    pair.write(*BATCHES)
    pair.sql(f"UPDATE {TABLE} SET payload = 'corrected' WHERE id BETWEEN 3000 AND 3004")
    pair.verify(write_missing=tmp_path / "files")
    assert len(shell.run(tmp_path / "files" / PAGE, "kafka-console-producer.sh")) == 1
    again = pair.verify(table_only=True)
    assert again.same, str(again)


def test_columns_that_postgresql_computes_or_numbers_itself_are_not_set(
    make_pair: MakePair, shell: OperatorShell, tmp_path: Path
) -> None:
    """COPY takes what a record has for an identity column; UPDATE refuses it, and both refuse a generated column."""
    pair = make_pair(upsert=True)
    pair.write(*BATCHES)
    pair.sql(f"ALTER TABLE {TABLE} ADD no bigint GENERATED ALWAYS AS IDENTITY")
    pair.sql(f"ALTER TABLE {TABLE} ADD doubled bigint GENERATED ALWAYS AS (2 * id) STORED")
    pair.sql(f"UPDATE {TABLE} SET payload = NULL WHERE id BETWEEN 3000 AND 3004")
    pair.sql(f"DELETE FROM {TABLE} WHERE id = 1000")
    told = "id = (value->>'id')::bigint, payload = value->>'payload', doubled = 2 * (value->>'id')::bigint"
    found = pair.verify(record_columns=f"{told}, no = 0", write_missing=tmp_path / "files")
    assert found.counts["missing_in_table"] == 1, str(found)
    assert len(shell.run(tmp_path / "files" / PAGE, "psql")) == 2
    again = pair.verify(record_columns=told)
    assert again.same, str(again)
