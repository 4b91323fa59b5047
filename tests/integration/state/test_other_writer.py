"""jdbc_state serves a writer that is not the sink, in a process that cannot import the sink."""

from __future__ import annotations

import subprocess
from contextlib import closing
from pathlib import Path

from sqlalchemy import create_engine, text

from jdbc_state import DONE, SqlStateStore
from tests.harness.without_modules import run_without
from tests.integration.state import other_writer


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return run_without({"spark_2pc_sink"}, other_writer.__file__, *map(str, arguments))


def test_a_writer_of_files_is_killed_after_its_decision_and_the_next_one_completes_it(
    database: str, tmp_path: Path
) -> None:
    engine = create_engine(database)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE target (value text)"))

    killed = run(database, tmp_path, 0, "--die")
    assert (killed.returncode, killed.stderr) == (other_writer.KILLED, "")
    assert [path.name for path in tmp_path.iterdir()] == ["1:0.open"]

    after = run(database, tmp_path, 1)
    assert (after.returncode, after.stderr, after.stdout) == (0, "", "SupersededError\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1:0.committed", "1:1.committed"]
    with engine.connect() as connection:
        rows = connection.execute(text("SELECT value FROM target")).scalars().all()
    engine.dispose()
    assert sorted(rows) == sorted(path.read_text() for path in tmp_path.iterdir()) == ["batch 0", "batch 1"]
    with closing(SqlStateStore(database)) as store:
        row = store.read("files")
        history = store.read_history("files", last=10)
    assert row is not None
    assert (row.status, row.batch_id, row.generation) == (DONE, 1, 2)
    assert [line.row.batch_id for line in history] == [1, 0, None]
