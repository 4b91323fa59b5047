"""The names at the top of the package: all documented, each with how stable it is, and visible to type checkers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import spark_2pc_sink
from spark_2pc_sink import __all__ as public
from tests.harness import public_names

ROOT = Path(__file__).parents[2]
#: A job as a user writes it. The comment behind a line is what mypy says of it.
JOB = """\
from spark_2pc_sink import BatchReport, DualWriteSink, HaltCause, HaltError, __version__, recover, status
from spark_2pc_sink.producer import TransactionalWriter

KAFKA = {"bootstrap.servers": "broker:9092", "compression.type": "zstd"}
URL = "postgresql+psycopg2://db/shop"

def note(report: BatchReport) -> None:
    print(__version__, report.transactional_id, report.row_count + 1)

def pages(error: HaltError) -> bool:
    return error.cause is HaltCause.COMMITS_LOST

sink = DualWriteSink(
    transactional_id="orders", kafka=KAFKA, database=URL, table="orders", topic="orders", columns={"id": "id"},
    mode="upsert", upsert_keys=["id"], accept_loss="41..43", adopt=True, on_batch=note, lock_timeout_ms=5_000,
)
DualWriteSink(transactional_id="orders", kafka={"bootstrap.servers": "h", "batch.size": 1}, database=URL, table="t")
with TransactionalWriter(transactional_id="orders", kafka=KAFKA, topic="orders") as writer:
    writer.init_transactions()

DualWriteSink(transactional_id="o", kafka=KAFKA, database=URL, table="t", lock_timeout_ms="5s")  # expected "int"
DualWriteSink(transactional_id="o", kafka=KAFKA, database=URL, table="t", mode="overwrite")  # Literal['append'
DualWriteSink(transactional_id="o", kafka=KAFKA, database=URL, table="t", upsert_key=["id"])  # did you mean "upsert_k
DualWriteSink(transactional_id="o", kafka=KAFKA, database=URL, table="t", upsert_keys="id")  # expected "list[str]
DualWriteSink(transactional_id="o", kafka=KAFKA, database=URL, table="t", on_batch=pages)  # BatchReport
DualWriteSink(transactional_id="o", kafka=KAFKA, table="t")  # Missing named argument "database"
DualWriteSink(transactional_id="o", kafka="h:9092", database=URL, table="t")  # expected "Mapping[str, str | int | Call
TransactionalWriter(transactional_id="o", kafka={"bootstrap.servers": None})  # expected "str": "str | int | Call
TransactionalWriter(transactional_id="o", kafka=KAFKA, topics=["t"])  # did you mean "topic"?
from spark_2pc_sink import DualWriteSnik  # has no attribute "DualWriteSnik"
"""
#: Kept from run to run: mypy reads again what has changed.
CACHE = ROOT / ".cache" / "mypy-of-users"
#: A library that is not part of what is tested need not be read.
SETTINGS = """\
[mypy]
strict = True
[mypy-pyspark.*,sqlalchemy.*,numpy.*,pyarrow.*,kafka.*,psycopg2.*,pandas.*,py4j.*]
follow_imports = skip
"""


def test_every_public_name_is_documented_with_its_stability() -> None:
    table = re.findall(r"^(\w+) +(stable|provisional) +\S", spark_2pc_sink.__doc__ or "", re.MULTILINE)
    assert sorted(name for name, _ in table) == sorted(public)


@pytest.mark.parametrize("name", public)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(spark_2pc_sink, name) is not None
    assert name in dir(spark_2pc_sink)


def test_no_public_name_comes_changes_or_goes_unnoticed() -> None:
    """After a change that is meant: python -m tests.harness.public_names --write, and a line in CHANGELOG.md."""
    assert public_names.public_names().splitlines() == public_names.LIST.read_text().splitlines()


def test_another_name_is_not_there() -> None:
    with pytest.raises(AttributeError, match="module 'spark_2pc_sink' has no attribute 'DualWriteSnik'"):
        spark_2pc_sink.DualWriteSnik  # type: ignore[attr-defined]  # noqa: B018 - what is tested


@pytest.mark.slow
def test_a_user_s_mypy_checks_every_call(tmp_path: Path) -> None:
    """Each line with a comment is reported, and no other one."""
    (tmp_path / "job.py").write_text(JOB)
    (tmp_path / "mypy.ini").write_text(SETTINGS)
    command = [sys.executable, "-m", "mypy", "--config-file=mypy.ini", f"--cache-dir={CACHE}", "job.py"]
    # The package counts as installed where PYTHONPATH has it: mypy reads it, and reports the job's errors alone.
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    errors = {int(line.split(":")[1]): line for line in done.stdout.splitlines() if ": error: " in line}
    expected = {number: line.partition("  # ")[2] for number, line in enumerate(JOB.splitlines(), 1) if "  # " in line}
    assert errors.keys() == expected.keys(), done.stdout + done.stderr
    assert [said for number, said in expected.items() if said not in errors[number]] == []
