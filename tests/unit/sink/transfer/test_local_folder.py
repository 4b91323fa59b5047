"""The folder that tasks of one machine share with the driver, and the shuffle files in it."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spark_2pc_sink.errors import BatchRetryError
from spark_2pc_sink.ids import ProducerIdAndEpoch
from spark_2pc_sink.sink.contract.batch_work import TransactionTicket
from spark_2pc_sink.sink.job.session_facts import local_directory, runs_here
from spark_2pc_sink.sink.tasks.shuffle_files import ShuffleFile, ShuffleFiles
from spark_2pc_sink.sink.transfer.local_folder import LocalFolder

TICKET = TransactionTicket("orders", ProducerIdAndEpoch(1, 0), 2, 3, 1, "2pc:orders:3", kafka_only=False)


def test_a_folder_goes_with_its_sink(tmp_path: Path) -> None:
    folder = LocalFolder(tmp_path)
    assert folder.path.stat().st_mode & 0o777 == 0o700
    (folder.begin(TICKET) / "part").touch()
    folder.close()
    folder.close()
    assert list(tmp_path.iterdir()) == []


def test_what_an_attempt_has_left_goes_with_it(tmp_path: Path) -> None:
    """C10: no two attempts share a folder, and none finds one that is there."""
    folder = LocalFolder(tmp_path)
    (folder.begin(TICKET) / "part").touch()
    with pytest.raises(BatchRetryError, match="/3_1 cannot be used: File exists"):
        folder.begin(TICKET)
    folder.end()
    assert [path.name for path in folder.path.iterdir()] == [".lock"]
    assert list(folder.begin(TICKET).iterdir()) == []


def test_a_folder_goes_with_its_process(tmp_path: Path) -> None:
    """And is removed by the next sink where the process was killed; that of a process that lives is left alone."""
    mine = LocalFolder(tmp_path)
    for ending in ("sys.exit()", "os.kill(os.getpid(), signal.SIGKILL)"):
        in_a_process(tmp_path, ending)
    killed = [path for path in tmp_path.iterdir() if path != mine.path]
    assert [[path.name for path in folder.iterdir() if path.is_dir()] for folder in killed] == [["3_1"]]
    other = LocalFolder(tmp_path)
    assert set(tmp_path.iterdir()) == {mine.path, other.path}


def in_a_process(directory: Path, ending: str) -> None:
    """Begin an attempt in a process that ends like this."""
    script = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from tests.unit.sink.transfer.test_local_folder import LocalFolder, TICKET\n"
        f"folder = LocalFolder(Path({str(directory)!r}))\n"
        "(folder.begin(TICKET) / 'part').touch()\n"
        f"{ending}\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[4])}
    subprocess.run([sys.executable, "-c", script], check=False, timeout=60, env=environment)


def a_link(place: Path) -> None:
    mine = place.with_name("mine")
    mine.mkdir(mode=0o700)
    (mine / ".lock").touch()
    place.symlink_to(mine)


def a_file(place: Path) -> None:
    place.touch()


def a_pipe(place: Path) -> None:
    os.mkfifo(place)


def a_folder_that_others_can_write(place: Path) -> None:
    place.mkdir()
    place.chmod(0o777)
    (place / ".lock").touch()


def a_lock_that_is_a_folder(place: Path) -> None:
    place.mkdir(mode=0o700)
    (place / ".lock").mkdir()


def a_lock_that_is_a_link(place: Path) -> None:
    place.mkdir(mode=0o700)
    (place / ".lock").symlink_to(place / "elsewhere")


@pytest.mark.parametrize(
    "plant",
    [
        *(a_link, a_file, a_pipe),
        *(a_folder_that_others_can_write, a_lock_that_is_a_folder, a_lock_that_is_a_link),
    ],
)
def test_what_others_have_planted_is_left_alone(tmp_path: Path, plant: Callable[[Path], None]) -> None:
    """C10: in a folder like /tmp every user can; the sink starts all the same, and follows and removes nothing."""
    plant(tmp_path / "spark-2pc-sink-planted")
    before = set(tmp_path.rglob("*"))
    LocalFolder(tmp_path).close()
    assert set(tmp_path.rglob("*")) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a folder for another user")
def test_a_folder_of_another_user_is_left_alone_by_root(tmp_path: Path) -> None:
    """C10: whom no permission keeps out; whether the other user's sink holds it or was killed."""
    planted = tmp_path / "spark-2pc-sink-planted"
    planted.mkdir(mode=0o700)
    (planted / ".lock").touch()
    os.chown(planted, 65534, 65534)
    LocalFolder(tmp_path).close()
    assert [path.name for path in planted.iterdir()] == [".lock"]
    os.chown(planted, 0, 0)
    LocalFolder(tmp_path).close()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_goes_in_this_moment_is_nobody_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "glob", lambda *_: [tmp_path / "gone"])
    LocalFolder(tmp_path).close()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_locked_before_others_can_ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C10: a sink that starts in between must not take it for abandoned."""
    flock = fcntl.flock

    def with_another(lock: int, operation: int) -> None:
        monkeypatch.undo()
        LocalFolder(tmp_path).close()
        flock(lock, operation)

    monkeypatch.setattr("fcntl.flock", with_another)
    mine = LocalFolder(tmp_path)
    LocalFolder(tmp_path).close()
    assert list(tmp_path.iterdir()) == [mine.path]


def test_a_folder_in_use_stays_when_somebody_has_tidied_its_lock_away(tmp_path: Path) -> None:
    """C10: as services do with files in /tmp that nobody has touched for days. Whoever holds it could not be asked."""
    mine = LocalFolder(tmp_path)
    (mine.path / ".lock").unlink()
    LocalFolder(tmp_path).close()
    (mine.begin(TICKET) / "part").touch()
    mine.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("master", "here"),
    [("local", True), ("local[2]", True), ("local[*,4]", True), ("local-cluster[2,1,1024]", False), ("yarn", False)],
)
def test_tasks_run_here_by_spark_s_master(master: str, here: bool) -> None:
    spark: Any = SimpleNamespace(conf={"spark.master": master})
    assert runs_here(spark) is here


@pytest.mark.parametrize(
    ("environment", "setting", "directory"),
    [("/a,/b", "/c", "/a"), ("", "/c,/d", "/c"), ("", None, "/of-the-system")],
)
def test_the_folder_is_where_spark_spills(
    monkeypatch: pytest.MonkeyPatch, environment: str, setting: str | None, directory: str
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", environment)
    monkeypatch.setattr("tempfile.gettempdir", lambda: "/of-the-system")
    settings = {} if setting is None else {"spark.local.dir": setting}
    spark: Any = SimpleNamespace(conf=settings)
    assert local_directory(spark) == Path(directory)


# --- shuffle files ----------------------------------------------------------------------------------------------------


def test_pieces_are_read_from_where_they_were_put(tmp_path: Path) -> None:
    """By encode task and attempt, in any order; what is read can be written to, so that nobody copies it."""
    folder = tmp_path / "shuffle"
    places = {}
    for encode_task, task_attempt in ((0, 7), (1, 7), (0, 8)):
        with ShuffleFile(folder, encode_task, task_attempt) as file:
            places[encode_task, task_attempt] = [
                file.append(f"{text}-{encode_task}-{task_attempt}".encode()) for text in ("first", "second")
            ]
    with ShuffleFiles(folder) as files:
        for (encode_task, task_attempt), (first, second) in places.items():
            assert files.read(encode_task, task_attempt, *second) == f"second-{encode_task}-{task_attempt}".encode()
            assert files.read(encode_task, task_attempt, *first) == f"first-{encode_task}-{task_attempt}".encode()


def test_an_encode_task_without_records_has_no_file(tmp_path: Path) -> None:
    with ShuffleFile(tmp_path / "shuffle", 0, 7):
        pass
    assert list(tmp_path.iterdir()) == []


def test_payloads_that_are_gone_or_cut_off_throw_the_attempt_away(tmp_path: Path) -> None:
    """C10: what somebody has removed is never left out silently."""
    with ShuffleFile(tmp_path / "shuffle", 0, 7) as file:
        begin, length = file.append(b"payload")
    with ShuffleFiles(tmp_path / "shuffle") as files:
        with pytest.raises(BatchRetryError, match="0-7 has 7 of 8 bytes at 0: it was cut off"):
            files.read(0, 7, begin, length + 1)
        with pytest.raises(BatchRetryError, match="0-8 cannot be used: No such file"):
            files.read(0, 8, begin, length)


def test_pieces_for_which_there_is_no_room_throw_the_attempt_away(tmp_path: Path) -> None:
    with pytest.raises(BatchRetryError, match="0-7 cannot be used: No such file"):
        ShuffleFile(tmp_path / "gone" / "shuffle", 0, 7).append(b"payload")
    full = ShuffleFile(tmp_path / "shuffle", 0, 7)
    full.append(b"payload")
    full._file = Path("/dev/full").open("wb")  # noqa: SIM115 - closed below
    full.append(b"kept back")
    with pytest.raises(BatchRetryError, match="No space left on device"):
        full.__exit__()
