"""The places at which a driver under test kills or stops itself, put around the product's own methods.

Steps are reported by the product, through the one function that exists for this; what lies between two steps is
reached by wrapping a method. Nothing is replaced: every method is called, with what it was called with.
"""

from __future__ import annotations

import functools
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jdbc_state.deciding import SqlDecidingTransaction
from spark_2pc_sink.kafka.batch_sender import PartitionQueue
from spark_2pc_sink.kafka.transaction_client import TransactionClient
from spark_2pc_sink.recipe.steps import Step
from spark_2pc_sink.recovery.recovery import Recovered, Recovery
from spark_2pc_sink.sink.driver import step_observer
from tests.harness.driver_config import KILL, STOP, TERMINATE, Fault, Journal


class Faults:
    """Carries the faults of one driver out, each once.

    Args:
        faults: what to do where.
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
        """The driver is at ``place``."""
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
        elif fault.do == TERMINATE:
            os.kill(os.getpid(), signal.SIGTERM)
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
    """Call ``call`` before each call of a method."""
    method = getattr(owner, name)

    @functools.wraps(method)
    def wrapped(self: Any, *positional: Any, **named: Any) -> Any:
        call()
        return method(self, *positional, **named)

    setattr(owner, name, wrapped)


def _timed_recovery(journal: Journal) -> None:
    """Note how long each recovery took, and what it did."""
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
