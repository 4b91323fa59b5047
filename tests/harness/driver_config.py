"""What a driver under test is told, what it tells, and the places at which it kills or stops itself.

Steps are reported by the product, through the one function that exists for this; what lies between two steps is
reached by wrapping a method. Nothing is replaced: every method is called, with what it was called with.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from jdbc_state.deciding import SqlDecidingTransaction
from spark_2pc_sink.errors import HaltError
from spark_2pc_sink.kafka.batch_sender import PartitionQueue
from spark_2pc_sink.kafka.transaction_client import TransactionClient
from spark_2pc_sink.recipe.steps import Step
from spark_2pc_sink.recovery.recovery import Recovered, Recovery
from spark_2pc_sink.sink.driver import step_observer

#: A row of a batch: its key, and the rest.
Row = tuple[int, str]

#: The same as Spark has it.
ROWS = "id BIGINT, payload STRING"

KILL = "kill"
STOP = "stop"
TERMINATE = "terminate"
HOLD = "hold"
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
            continues it; `TERMINATE` sends it SIGTERM, as a scheduler does, and with `HOLD` the batch also goes no
            further. Both only with Spark.
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
        spark: run a streaming query in Spark, in place of the batch driver alone.
        by_tasks: with Spark, tasks write small batches too, in place of the driver.
        example: in place of either, the orders example: its command line.
        follow: the input grows: wait for each batch's file; without Spark until the input holds `END`.
        left_out: batches that the job's function does not hand over to the sink. Only without Spark.
        orders: file in which the driver is told, while it runs, at which place to stop itself next; '' for none.
    """

    journal: str
    checkpoint: str
    input: str = ""
    query_id: str = ""
    batches: int = 0
    sink: Mapping[str, Any] = field(default_factory=dict)
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
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> DriverConfig:
        values = json.loads(path.read_text())
        faults = tuple(Fault(**fault) for fault in values["faults"])
        lists = {name: tuple(values[name]) for name in ("example", "left_out")}
        return cls(**{**values, **lists, "faults": faults})


def batch_file(folder: Path | str, batch: int) -> Path:
    return Path(folder) / f"{batch:06}.json"


def read_batch(folder: Path | str, batch: int) -> list[Row]:
    lines = batch_file(folder, batch).read_text().splitlines()
    return [(row["id"], row["payload"]) for row in map(json.loads, lines)]


class Journal:
    """Appends one line for each event, in one write: what was written before a SIGKILL is there."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(self, event: str, **values: object) -> None:
        """Append an event; ``at_s`` is the machine's monotonic clock, the same in all processes."""
        line = json.dumps({"event": event, "at_s": time.monotonic(), **values})
        os.write(self._file, f"{line}\n".encode())

    def write_error(self, error: Exception) -> None:
        cause = error.cause.value if isinstance(error, HaltError) else ""
        self.write("error", type=type(error).__name__, cause=cause, text=str(error))


class Faults:
    """Carries the faults of one driver out, each once.

    Args:
        journal: told right before a fault, because there may be no after.
        orders: file that names a place at which to stop; it may come at any time, and is removed when it is obeyed.
    """

    def __init__(self, faults: tuple[Fault, ...], journal: Journal, orders: Path | None = None) -> None:
        self._faults = faults
        self._journal = journal
        self._orders = orders
        self._seen: Counter[Fault] = Counter()
        #: The batch that is being written, or is to be written next.
        self.batch = 0

    def reached(self, place: str) -> None:
        if self._orders is not None and _take_order(self._orders, place):
            self._carry_out(Fault(at=place, batch=self.batch, do=STOP))
        for fault in self._faults:
            if (fault.at, fault.batch) == (place, self.batch):
                self._seen[fault] += 1
                if self._seen[fault] == fault.nth:
                    self._carry_out(fault)

    def install(self) -> None:
        """Put this around the product's methods, in this process."""
        step_observer.reached = self._step
        _before(SqlDecidingTransaction, "commit", lambda: self.reached("commit"))
        _before(TransactionClient, "end", lambda: self.reached("end"))
        _before(TransactionClient, "init_producer_id", lambda: self.reached("init"))
        _before(PartitionQueue, "acknowledged", lambda: self.reached("acknowledged"))
        _timed_recovery(self._journal)

    def _step(self, step: Step) -> None:
        self._journal.write("step", step=step.name, batch=self.batch)
        self.reached(f"step:{step.name}")

    def _carry_out(self, fault: Fault) -> None:
        self._journal.write("fault", at=fault.at, batch=fault.batch, do=fault.do)
        if fault.do == KILL:
            os.killpg(0, signal.SIGKILL)
            # Another thread may take the signal: until it does, this one would go on past the place.
            threading.Event().wait()
        elif fault.do == STOP:
            # To this thread, which takes it before it goes on; it stops the whole process.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        elif fault.do in (TERMINATE, HOLD):
            os.kill(os.getpid(), signal.SIGTERM)
            if fault.do == HOLD:
                threading.Event().wait()
        else:
            raise ValueError(fault.do)
        self._journal.write("continued", at=fault.at)


def _take_order(orders: Path, place: str) -> bool:
    """True when the driver is told to stop at this place; said once."""
    try:
        told = orders.read_text()
    except FileNotFoundError:
        return False
    if told == place:
        orders.unlink()
    return told == place


def _before(owner: type[Any], name: str, call: Callable[[], None]) -> None:
    method = getattr(owner, name)

    @functools.wraps(method)
    def wrapped(self: Any, *positional: Any, **named: Any) -> Any:
        call()
        return method(self, *positional, **named)

    setattr(owner, name, wrapped)


def _timed_recovery(journal: Journal) -> None:
    run = Recovery.run

    @functools.wraps(run)
    def wrapped(self: Recovery, **named: Any) -> Recovered:
        begun_s = time.monotonic()
        journal.write("recovering")
        recovered = run(self, **named)
        journal.write(
            "recovered",
            took_ms=(time.monotonic() - begun_s) * 1000,
            generation=recovered.row.generation,
            two_phase_commit=recovered.initialized.two_phase_commit,
            actions=[str(action) for action in recovered.report.actions],
            report=str(recovered.report),
        )
        return recovered

    setattr(Recovery, "run", wrapped)  # noqa: B010 - a method is not assignable for type checkers
