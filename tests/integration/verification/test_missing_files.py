"""What is missing is written whole, whatever the columns' names, and applied by the commands that are printed."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import make_url

from spark_2pc_sink.options.layout import SinkLayout
from spark_2pc_sink.testing import CapabilityError, read_topic
from spark_2pc_sink.testing.postgres import find_binaries
from spark_2pc_sink.verification.repairs import PAGE, RECORDS
from tests.conftest import or_skip
from tests.harness.column_names import NAMES, column_kinds, quoted, row_of
from tests.harness.kafka_tools import make_scripts
from tests.harness.written_pair import TABLE
from tests.integration.verification.conftest import BATCHES, MakePair
from tests.integration.verification.written_sides import Sides

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


@pytest.mark.java
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


@pytest.fixture
def kinds(sides: Sides) -> dict[str, str]:
    """The columns of the table. Tables named as temporary ones of ours come first in the search path."""
    found = column_kinds("bigint")
    columns = ", ".join(f"{quoted(name)} {kind}" for name, kind in found.items())
    sides.sql(f"DROP TABLE target; CREATE TABLE target (id bigint PRIMARY KEY, {columns})")
    for name in ("record", "records", "rows", "staged", "winners", "counts", "lone_records", "lone_rows", "pairs"):
        sides.sql(f"CREATE TABLE verify_{name} (nothing text)")
    sides.sql("CREATE TABLE as_in_kafka (nothing text)")
    sides.sql(f"ALTER DATABASE {quoted(str(make_url(sides.database).database))} SET search_path = public, pg_temp")
    return found


def lines(folder: Path, name: str) -> list[str]:
    return (folder / name).read_text().rstrip("\n").split("\n")


def stored(sides: Sides, number: int) -> Any:
    ((row,),) = sides.sql("SELECT to_jsonb(target.*) FROM target WHERE id = %s", number)
    return row


@pytest.mark.java
def test_every_column_is_compared_and_what_is_missing_is_the_whole_row(
    sides: Sides, kinds: dict[str, str], tmp_path: Path, shell: OperatorShell
) -> None:
    sides.write([row_of(kinds, number) for number in range(4)])
    report = sides.verify()
    assert (report.verdict, set(report.columns)) == ("same", {"id", *NAMES}), str(report)
    sides.sql("INSERT INTO target SELECT * FROM json_populate_record(NULL::target, %s)", json.dumps(row_of(kinds, 50)))
    lost = stored(sides, 1)
    sides.sql("DELETE FROM target WHERE id = 1")
    names = ", ".join(map(quoted, NAMES)).replace("%", "%%")
    sides.sql(
        f"UPDATE target SET ({names}) = (SELECT {names} FROM target AS other WHERE other.id = %s) WHERE id = 2", 3
    )
    files = tmp_path / "files"
    report = sides.verify(write_missing=files, differences_max=5)
    assert {(each.kind, each.key) for each in report.differences} == {
        ("missing_in_table", "id=1"),
        ("differing", "id=2"),
        ("missing_in_kafka", "id=50"),
    }, str(report)
    (differing,) = (each for each in report.differences if each.kind == "differing")
    assert all(f"{name} is " in differing.text for name in NAMES), differing.text
    (by_hand,) = lines(files, RECORDS["missing"])
    assert json.loads(by_hand[by_hand.index("{") :]) == stored(sides, 50)
    (as_in_table,) = lines(files, RECORDS["differing"])
    assert json.loads(as_in_table[as_in_table.index("{") :]) == stored(sides, 2)
    assert len(shell.run(files / PAGE, "psql")) == 2
    assert stored(sides, 1) == lost
    assert dict(sides.verify().counts) == {"missing_in_kafka": 1}


@pytest.mark.parametrize("name", ["a?b", "n" * 64], ids=["no column's", "longer than a column's"])
def test_fields_of_other_names_than_their_columns(sides: Sides, name: str) -> None:
    layout = SinkLayout(
        table="target",
        topic=sides.topic,
        value=f"to_json(struct(id, name AS `{name}`))",
        columns={"id": "id", "name": "name"},
    )
    told = [json.dumps({"id": n, name: f"n{n}"}).encode() for n in range(3)]
    sides.write([{"id": n, "name": f"n{n}"} for n in range(3)], values=told, layout=layout.as_json())
    report = sides.verify()
    assert report.verdict == "same", str(report)
    if len(name) > 63:
        assert any(part.what == "column name" and "longer" in part.why for part in report.not_checked), str(report)
        return
    sides.sql("UPDATE target SET name = 'other' WHERE id = 1")
    assert [each.kind for each in sides.verify(keys=["id"]).differences] == ["differing"]
