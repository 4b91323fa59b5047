"""Tables with columns that have the names of aliases, and of temporary tables and columns, of the statements."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import make_url

from spark_2pc_sink.options.database import as_libpq_uri
from spark_2pc_sink.options.layout import SinkLayout
from spark_2pc_sink.testing import CapabilityError
from spark_2pc_sink.testing.postgres import find_binaries
from spark_2pc_sink.verification.repairs import RECORDS, ROWS
from tests.conftest import or_skip
from tests.harness.column_names import NAMES, column_kinds, quoted, row_of
from tests.integration.verification.written_sides import Sides


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


def find_psql() -> str:
    program = find_binaries() / "psql"
    if not program.exists():
        raise CapabilityError(f"no psql in {program.parent}")
    return str(program)


def lines(folder: Path, name: str) -> list[str]:
    return (folder / name).read_text().rstrip("\n").split("\n")


def stored(sides: Sides, number: int) -> Any:
    ((row,),) = sides.sql("SELECT to_jsonb(target.*) FROM target WHERE id = %s", number)
    return row


def test_every_column_is_compared_and_what_is_missing_is_the_whole_row(
    sides: Sides, kinds: dict[str, str], tmp_path: Path, pytestconfig: pytest.Config
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
    report = sides.verify(write_missing=tmp_path, differences_max=5)
    assert {(each.kind, each.key) for each in report.differences} == {
        ("missing_in_table", "id=1"),
        ("differing", "id=2"),
        ("missing_in_kafka", "id=50"),
    }, str(report)
    (differing,) = (each for each in report.differences if each.kind == "differing")
    assert all(f"{name} is " in differing.text for name in NAMES), differing.text
    (by_hand,) = lines(tmp_path, RECORDS["missing"])
    assert json.loads(by_hand[by_hand.index("{") :]) == stored(sides, 50)
    (as_in_table,) = lines(tmp_path, RECORDS["differing"])
    assert json.loads(as_in_table[as_in_table.index("{") :]) == stored(sides, 2)
    with (tmp_path / ROWS["missing"]).open() as file:
        sides.copy("target", file)
    assert stored(sides, 1) == lost
    options = ["-v", "ON_ERROR_STOP=1", "-f", str(tmp_path / ROWS["differing"])]
    command = [or_skip(pytestconfig, find_psql), as_libpq_uri(sides.database), *options]
    environment = os.environ | {"PGPASSWORD": str(make_url(sides.database).password)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
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
