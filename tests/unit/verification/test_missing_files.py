"""The directory of files with what either side lacks."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import IO

import pytest
from sqlalchemy import make_url

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.verification.console_lines import ConsoleRecord, console_line
from spark_2pc_sink.verification.missing_files import (
    COMMANDS,
    READER,
    RECORDS,
    ROWS,
    UNSAYABLE,
    MissingFiles,
)

DATABASE = make_url("postgresql+psycopg2://ops:secret@db:5433/shop?sslpassword=hidden")


def copy_out(file: IO[bytes]) -> int:
    return file.write(b"1\ta\n") and 1


def test_a_directory_that_is_not_empty_is_refused(tmp_path: Path) -> None:
    (tmp_path / "old").touch()
    with pytest.raises(ConfigurationError, match="the directory is empty") as refused:
        MissingFiles(tmp_path)
    assert refused.value.option == "write_missing"


def test_a_file_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="it cannot be made or read"):
        MissingFiles(tmp_path / "file")


def test_files_and_the_commands_that_apply_them(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "files"
    files = MissingFiles(folder)
    files.write_rows(table='"My Orders"', columns=["id", '"a b"'], database=DATABASE, copy_out=copy_out)
    record = ConsoleRecord(b"1", b"{}")
    files.write_records([record], topic="orders", bootstrap_servers="h:1,h:2", notes=["Their headers are not known."])
    written = files.finish("spark-2pc verify --transactional-id orders")
    assert sorted(Path(path).name for path in written) == sorted([ROWS, RECORDS, READER, COMMANDS])
    assert sorted(path.name for path in folder.iterdir()) == sorted(Path(path).name for path in written)
    assert (folder / RECORDS).read_bytes() == console_line(record)
    page = (folder / COMMANDS).read_text()
    psql = """psql postgresql://ops@db:5433/shop -v ON_ERROR_STOP=1 -c 'COPY "My Orders" (id, "a b") FROM STDIN'"""
    for command in (
        f"{psql} < {ROWS}",
        f"kafka-console-producer.sh --bootstrap-server h:1,h:2 --topic orders --reader-config {READER} < {RECORDS}",
        "spark-2pc verify --transactional-id orders",
    ):
        assert f"\n    {command}\n" in page
    assert "Their headers are not known." in page
    assert "secret" not in page
    assert "hidden" not in page


def test_a_record_that_no_line_can_say_is_in_a_file_of_its_own(tmp_path: Path) -> None:
    files = MissingFiles(tmp_path)
    records = [ConsoleRecord(b"k", b"\xff", (("h", None),)), ConsoleRecord(None, b"{}")]
    files.write_records(records, topic="t", bootstrap_servers="h:1")
    assert str(tmp_path / UNSAYABLE) in files.finish("again")
    (line,) = (tmp_path / UNSAYABLE).read_text().splitlines()
    found = json.loads(line)
    assert base64.b64decode(found.pop("value")) == b"\xff"
    assert found == {
        "key": base64.b64encode(b"k").decode(),
        "headers": [{"name": "h", "value": None}],
        "reason": "the value is not UTF-8",
    }
    page = (tmp_path / COMMANDS).read_text()
    assert "1 records that Kafka lacks" in page
    assert "1 more records cannot be sent by the console producer" in page


def test_where_nothing_is_missing_the_page_says_so(tmp_path: Path) -> None:
    (page,) = MissingFiles(tmp_path).finish("again")
    assert "Neither side lacks anything" in Path(page).read_text()
    assert "again" not in Path(page).read_text()
