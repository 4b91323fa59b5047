"""A driver that is told to stop at a place stands there, and not a moment later."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from spark_2pc_sink.testing import wait_until
from tests.harness import ROOT
from tests.harness.driver_config import STOP, DriverConfig, Fault
from tests.harness.driver_process import DriverProcess

_DEADLINE_S = 30.0
_TIMES = 20
# As in a streaming query: a batch is written by another thread than the main one, which waits.
_DRIVER = f"""
import sys, threading
from pathlib import Path
from tests.harness.driver_config import DriverConfig, Journal
from tests.harness.driver_config import Faults

def write():
    for _ in range({_TIMES}):
        faults.reached("commit")

config = DriverConfig.read(Path(sys.argv[1]))
faults = Faults(config.faults, Journal(config.journal))
batch = threading.Thread(target=write)
batch.start()
batch.join()
"""


def test_the_thread_that_stops_its_process_does_not_go_on(tmp_path: Path) -> None:
    config = DriverConfig(
        journal=str(tmp_path / "journal"),
        input="",
        checkpoint="",
        query_id="",
        batches=0,
        sink={},
        faults=tuple(Fault(at="commit", batch=0, do=STOP, nth=nth + 1) for nth in range(_TIMES)),
    )
    config.write(tmp_path / "config.json")
    expected: list[str] = []
    with subprocess.Popen(
        [sys.executable, "-c", _DRIVER, str(tmp_path / "config.json")], cwd=ROOT, start_new_session=True
    ) as process:
        driver = DriverProcess(process.pid, config, tmp_path / "log")
        try:
            for _ in range(_TIMES):
                expected.append("fault")
                wait_until(lambda: driver.stopped, deadline_s=_DEADLINE_S, what="the driver to stop itself")
                assert [event["event"] for event in driver.events()] == expected
                expected.append("continued")
                driver.go_on()
                wait_until(
                    lambda: len(driver.events()) >= len(expected), deadline_s=_DEADLINE_S, what="the driver to go on"
                )
        finally:
            driver.close()
    assert [event["event"] for event in driver.events()] == expected
