"""What a driver under test is told, and what it tells: a file of settings, and a journal that survives its death."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from spark_2pc_sink.errors import HaltError

#: A row of a batch: its key, and the rest.
Row = tuple[int, str]

#: The same as Spark has it.
ROWS = "id BIGINT, payload STRING"

KILL = "kill"
STOP = "stop"
TERMINATE = "terminate"
#: A file of this name ends an input that grows.
END = "END"


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What a driver does to itself at one place.

    Args:
        at: the place: ``step:NAME`` of `spark_2pc_sink.recipe.steps.Step`, right after that step; ``copy``,
            inside COPY, with a part of the rows sent; ``commit``, ``end`` and ``init``, right before COMMIT of the
            decision, EndTxn(commit) and InitProducerId are sent; ``acknowledged``, right before an acknowledged record
            batch is counted.
        batch: the batch that is being written, or is to be written next.
        do: `KILL` ends it and its process group with SIGKILL, `STOP` stops the process with SIGSTOP until somebody
            continues it; `TERMINATE` sends it SIGTERM, as a scheduler does. Only with Spark.
        nth: at the how manieth time.
    """

    at: str
    batch: int
    do: str
    nth: int = 1


@dataclass(frozen=True, kw_only=True)
class DriverConfig:
    """One run of a driver; written as JSON.

    Args:
        journal: file to which it appends what happens.
        input: folder with one file of rows for each batch, ``000000.json`` and so on.
        checkpoint: what is kept over restarts: Spark's folder, or a stand-in with one file for each finished batch.
        query_id: of the stand-in; Spark has its own.
        batches: how many there are.
        sink: keyword arguments of the sink.
        faults: what it does to itself.
        spark: run a streaming query in Spark, in place of the batch driver alone.
        schema: of the input, with Spark.
        files_per_batch: with Spark.
        by_tasks: with Spark, tasks write small batches too, in place of the driver.
        example: in place of either, the orders example: its command line.
        follow: the input grows: wait for each batch's file; without Spark until the input holds `END`.
        left_out: batches that the job's function does not hand over to the sink. Only without Spark.
        orders: file in which the driver is told, while it runs, at which place to stop itself next; '' for none.
    """

    journal: str
    input: str
    checkpoint: str
    query_id: str
    batches: int
    sink: Mapping[str, Any]
    faults: tuple[Fault, ...] = field(default=())
    spark: bool = False
    example: tuple[str, ...] = ()
    schema: str = ROWS
    files_per_batch: int = 1
    by_tasks: bool = False
    follow: bool = False
    left_out: tuple[int, ...] = ()
    orders: str = ""

    def write(self, path: Path) -> None:
        """Write it to a file."""
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> DriverConfig:
        """Read what `write` wrote."""
        values = json.loads(path.read_text())
        faults = tuple(Fault(**fault) for fault in values["faults"])
        lists = {name: tuple(values[name]) for name in ("example", "left_out")}
        return cls(**{**values, **lists, "faults": faults})

    def rows(self, batch: int) -> list[Row]:
        """The rows of a batch."""
        text = batch_file(Path(self.input), batch).read_text()
        return [(row["id"], row["payload"]) for row in map(json.loads, text.splitlines())]


def batch_file(folder: Path, batch: int) -> Path:
    """Where a batch's rows are."""
    return folder / f"{batch:06}.json"


class Journal:
    """Appends one line for each event, in one write: what was written before a SIGKILL is there."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(self, event: str, **values: object) -> None:
        """Append an event; ``at_s`` is the machine's monotonic clock, the same in all processes."""
        line = json.dumps({"event": event, "at_s": time.monotonic(), **values})
        os.write(self._file, f"{line}\n".encode())

    def write_error(self, error: Exception) -> None:
        """Append the error with which a driver ends."""
        cause = error.cause.value if isinstance(error, HaltError) else ""
        self.write("error", type=type(error).__name__, cause=cause, text=str(error))
