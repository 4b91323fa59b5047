"""The staging files: staged rows on the disk, where tasks run on the driver's machine.

What a server writes and reads again for them costs more than everything else that a task does for PostgreSQL. A task
fills a folder of its own, one file for each part, named when it is complete (`_FileStore`); the driver removes each
when it has read it (`StagedFiles`). What is left goes with the folder of the attempt (`local_folder`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from spark_2pc_sink.errors import BatchRetryError
from spark_2pc_sink.sink.contract.row_transfer import StagedParts
from spark_2pc_sink.sink.table.catalog import driver_connection
from spark_2pc_sink.sink.transfer.local_folder import unusable

if TYPE_CHECKING:
    from types import TracebackType

    from sqlalchemy import Connection

    from spark_2pc_sink.sink.table.copy_stream import Stream

_UNFINISHED: Final = "unfinished"


@dataclass(frozen=True)
class FileStaging:
    """See `Staging`.

    Attributes:
        folder: of the attempt's rows; what it is in is there.
        look_s: see `Staging`; a look at a folder is cheap.
        part_bytes: see `Staging`; so is a file, and small parts are written sooner.
    """

    folder: Path
    look_s: float = 0.05
    part_bytes: int = 1024 * 1024

    def store(self, encode_task: int, task_attempt: int) -> _FileStore:
        """See `Staging.store`."""
        return _FileStore(self.folder, encode_task, task_attempt)

    def staged(self, connection: Connection) -> StagedFiles:
        """See `Staging.staged`."""
        return StagedFiles(self.folder, connection)


class _FileStore:
    """The files of one attempt of one encode task.

    Args:
        rows: the folder of the attempt's rows.
        encode_task: the Spark partition id.
        task_attempt: tells the attempts of one encode task apart.
    """

    def __init__(self, rows: Path, encode_task: int, task_attempt: int) -> None:
        self._task_folder = rows / str(encode_task)
        self._folder = self._task_folder / str(task_attempt)

    def __enter__(self) -> _FileStore:
        try:
            self._task_folder.parent.mkdir(exist_ok=True)
            self._task_folder.mkdir()
            self._folder.mkdir()
        except FileExistsError as error:
            raise BatchRetryError(
                reason=f"staging folder {self._task_folder} is there already: its encode task ran again"
            ) from error
        except OSError as error:
            raise unusable(self._task_folder, error) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing is open."""

    def put(self, number: int, stream: Stream) -> None:
        """See `PartStore.put`.

        Raises:
            BatchRetryError: the disk is full, or the folder is gone.
        """
        unfinished = self._folder / _UNFINISHED
        try:
            with unfinished.open("wb") as file:
                file.writelines(stream)
            unfinished.rename(self._folder / str(number))
        except OSError as error:
            raise unusable(self._folder, error) from error


class StagedFiles(StagedParts):
    """See `StagedParts`.

    Args:
        rows: the folder of the attempt's rows.
        connection: of the transaction that decides.
    """

    def __init__(self, rows: Path, connection: Connection) -> None:
        super().__init__()
        self._rows = rows
        self._connection = driver_connection(connection)

    def _places(self) -> list[tuple[int, Path]]:
        with self._connection.cursor() as cursor:
            cursor.execute("SELECT 1")
        return [(int(folder.parent.name), folder) for folder in sorted(self._rows.glob("*/*"))]

    def _read(self, place: Path, number: int) -> tuple[int, Stream] | None:
        part = place / str(number)
        try:
            stream = part.read_bytes()
        except FileNotFoundError:
            return None
        # What is gone before the system gets to it is never written to a disk.
        part.unlink()
        return int(place.name), [stream]
