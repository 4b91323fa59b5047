"""The batch driver alone, batch after batch: real transactions on both sides, and nothing of Spark between them.

Now and then an attempt fails after its records were sent, which is the way back that leaks would be on; and now and
then the run ends and another one begins, in the same process.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection

from spark_2pc_sink.errors import BatchRetryError
from spark_2pc_sink.options import SinkOptions
from spark_2pc_sink.sink.driver.batch_driver import BatchDriver
from spark_2pc_sink.sink.driver.batch_values import TransactionTicket
from tests.harness.driver_config import Row
from tests.harness.driver_main import open_driver
from tests.harness.driver_rows import RowsWork
from tests.soak.child import END_DEADLINE_S, Gate, serve
from tests.unit.fakes.batch_work import Results

ROWS_PER_BATCH: Final = 4
#: The first attempt of one batch in this many fails.
FAILING_EVERY: Final = 50
#: Batches of one run of the query.
BATCHES_PER_RUN: Final = 250


_log = logging.getLogger(__name__)


class Work(RowsWork):
    """Rows whose first attempt may fail when all of them have been sent."""

    def __init__(self, options: SinkOptions, rows: list[Row], *, failing: bool) -> None:
        super().__init__(options, rows, lambda: None)
        self._failing = failing

    def produce(self, ticket: TransactionTicket, open_decision: Callable[[], Connection]) -> Results:
        produced = super().produce(ticket, open_decision)
        if self._failing:
            self._failing = False
            raise BatchRetryError(reason="failed on purpose by the soak test")
        return produced


class BareLoad:
    """Writes batches until it is told to stop."""

    def __init__(self, sink: dict[str, Any]) -> None:
        self._options = SinkOptions.parse(**sink)
        self._stopping = threading.Event()
        self._ended = threading.Event()
        self.gate = Gate(self._ended.is_set)
        self._batches = 0
        self._error = ""

    def run(self) -> None:
        """Write until `stop`, or until something goes wrong, which the next sample tells."""
        try:
            while not self._stopping.is_set():
                with open_driver(self._options, "soak") as (driver, _):
                    driver.recover()
                    end = self._batches + BATCHES_PER_RUN
                    while self._batches < end and not self._stopping.is_set():
                        self._write(driver)
        except Exception as error:  # noqa: BLE001 - whatever it is, the next sample tells
            _log.exception("the load failed")
            self._error = repr(error)
        finally:
            self._ended.set()

    def stop(self) -> None:
        """End after the batch that is being written."""
        self._stopping.set()
        self._ended.wait(END_DEADLINE_S)

    def sample(self, used: bool) -> dict[str, Any]:
        del used  # it costs nothing
        return {"batches": self._batches, "error": self._error}

    def _write(self, driver: BatchDriver) -> None:
        first = self._batches * ROWS_PER_BATCH
        rows = [(number, f"row {number}") for number in range(first, first + ROWS_PER_BATCH)]
        failing = self._batches % FAILING_EVERY == FAILING_EVERY - 1
        driver.write(self._batches, Work(self._options, rows, failing=failing))
        self._batches += 1
        self.gate.after_batch()


if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR)
    _load = BareLoad(json.loads(Path(sys.argv[1]).read_text())["sink"])
    threading.Thread(target=_load.run).start()
    serve(_load.gate, _load.sample, _load.stop)
