"""How a task cuts its rows into parts, and the folder where parts lie on one machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from spark_2pc_sink.errors import BatchRetryError, LocalProtocolError
from spark_2pc_sink.ids import ProducerIdAndEpoch
from spark_2pc_sink.sink.batch_work import TransactionTicket
from spark_2pc_sink.sink.copy_stream import HEADER, TRAILER
from spark_2pc_sink.sink.spark_facts import local_directory, runs_here
from spark_2pc_sink.sink.staging import PartWriter
from spark_2pc_sink.sink.staging_files import FileStaging, StagingFolder

if TYPE_CHECKING:
    from collections.abc import Sequence

TICKET = TransactionTicket("orders", ProducerIdAndEpoch(1, 0), 2, 3, 1, "2pc:orders:3", kafka_only=False)


class Parts:
    """A store that keeps what it is given."""

    def __init__(self) -> None:
        self.kept: list[tuple[int, bytes]] = []

    def put(self, number: int, stream: Sequence[Any]) -> None:
        self.kept.append((number, b"".join(stream)))


def test_every_part_is_a_complete_stream() -> None:
    parts = Parts()
    writer = PartWriter(parts, part_bytes=4)
    for piece in (b"", HEADER + b"ab", b"cd", b"", b"efghi"):
        writer.write(piece)
    writer.finish(b"j" + TRAILER)
    assert parts.kept == [
        (0, HEADER + b"abcd" + TRAILER),
        (1, HEADER + b"efghi" + TRAILER),
        (2, HEADER + b"j" + TRAILER),
    ]
    assert writer.parts == 3


def test_nothing_is_stored_for_no_rows() -> None:
    parts = Parts()
    PartWriter(parts, part_bytes=4).finish(HEADER + TRAILER)
    assert parts.kept == []


def test_a_stream_that_is_not_whole_is_refused() -> None:
    with pytest.raises(LocalProtocolError, match="header"):
        PartWriter(Parts(), part_bytes=4).write(b"no header")
    with pytest.raises(LocalProtocolError, match="trailer"):
        PartWriter(Parts(), part_bytes=4).finish(b"no trailer")


# --- the folder ------------------------------------------------------------------------------------------------


def test_a_folder_goes_with_its_sink(tmp_path: Path) -> None:
    folder = StagingFolder(tmp_path)
    assert folder.path.stat().st_mode & 0o777 == 0o700
    with FileStaging(folder.path).store(TICKET, 0, 7) as store:
        store.put(0, [b"part"])
    folder.close()
    folder.close()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_goes_with_its_process(tmp_path: Path) -> None:
    """And is removed by the next sink where the process was killed; that of a process that lives is left alone."""
    mine = StagingFolder(tmp_path)
    for ending in ("sys.exit()", "os.kill(os.getpid(), signal.SIGKILL)"):
        in_a_process(tmp_path, ending)
    killed = [path for path in tmp_path.iterdir() if path != mine.path]
    assert len(killed) == 1
    assert [path.name for path in killed[0].iterdir() if path.is_dir()] == ["3_1"]
    other = StagingFolder(tmp_path)
    assert set(tmp_path.iterdir()) == {mine.path, other.path}


def in_a_process(directory: Path, ending: str) -> None:
    """Stage a part in a process that ends like this."""
    script = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from tests.unit.sink.test_staging import FileStaging, StagingFolder, TICKET\n"
        f"folder = StagingFolder(Path({str(directory)!r}))\n"
        "with FileStaging(folder.path).store(TICKET, 0, 7) as store:\n"
        "    store.put(0, [b'part'])\n"
        f"{ending}\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    subprocess.run([sys.executable, "-c", script], check=False, timeout=60, env=environment)


def test_a_folder_that_is_gone_is_named(tmp_path: Path) -> None:
    staging = FileStaging(tmp_path / "gone")
    with pytest.raises(BatchRetryError, match=r"/gone/3_1/0: No such file or directory; spark\.local\.dir"):
        staging.store(TICKET, 0, 7).__enter__()


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    """As a device that is always full says it."""
    with FileStaging(tmp_path).store(TICKET, 0, 7) as store:
        (tmp_path / "3_1" / "0" / "7" / "unfinished").symlink_to("/dev/full")
        with pytest.raises(BatchRetryError, match=r"No space left on device; spark\.local\.dir"):
            store.put(0, [b"part"])
    assert not (tmp_path / "3_1" / "0" / "7" / "0").exists()


@pytest.mark.parametrize(
    ("master", "here"),
    [("local", True), ("local[2]", True), ("local[*,4]", True), ("local-cluster[2,1,1024]", False), ("yarn", False)],
)
def test_tasks_run_here_by_spark_s_master(master: str, here: bool) -> None:
    context: Any = SimpleNamespace(master=master)
    assert runs_here(context) is here


@pytest.mark.parametrize(
    ("environment", "setting", "directory"),
    [("/a,/b", "/c", "/a"), ("", "/c,/d", "/c"), ("", None, "/of-the-system")],
)
def test_staged_rows_lie_where_spark_spills(
    monkeypatch: pytest.MonkeyPatch, environment: str, setting: str | None, directory: str
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", environment)
    monkeypatch.setattr("tempfile.gettempdir", lambda: "/of-the-system")
    context: Any = SimpleNamespace(getConf=lambda: {"spark.local.dir": setting})
    assert local_directory(context) == Path(directory)
