"""A driver as a program of its own, to be killed and stopped; see `tests.harness.driver_process`.

``python -m tests.harness.driver_main CONFIG`` runs the driver that the file describes. Without an argument it becomes
a nursery: it imports once what drivers need, and forks one for each line of its input. Such a driver is a process,
session and process group of its own like any other, but it is there at once: imports take a second and a half. A
driver with Spark starts this program anew.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import signal
import sys
import traceback
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from jdbc_state import Actor, SqlStateStore
from jdbc_state.connections import Database
from spark_2pc_sink.clock import SystemClock
from spark_2pc_sink.errors import DualWriteError
from spark_2pc_sink.kafka.cluster import Cluster
from spark_2pc_sink.kafka.transaction_client import TransactionClient
from spark_2pc_sink.options import SinkOptions
from spark_2pc_sink.recovery.recovery import Recovery
from spark_2pc_sink.sink.driver.batch_driver import BatchDriver
from spark_2pc_sink.sink.driver.batch_values import BatchRules, RunIds, RunOfQuery, Sides
from spark_2pc_sink.sink.driver.step_observer import StepTimes
from spark_2pc_sink.testing import wait_until
from tests.harness.driver_config import END, DriverConfig, Faults, Journal, batch_file, read_batch
from tests.harness.driver_rows import work_of

#: How long a driver that follows a growing input waits for its next file.
FOLLOW_DEADLINE_S = 600.0


def main(arguments: list[str]) -> int:
    if arguments:
        return run_driver(Path(arguments[0]))
    serve()
    return 0


def run_driver(path: Path) -> int:
    """Run the driver that a file describes; the journal's last line tells how it ended."""
    # Asked by `DriverProcess.account`: into the log, whatever the threads wait for.
    faulthandler.register(signal.SIGUSR1)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    config = DriverConfig.read(path)
    journal = Journal(config.journal)
    faults = Faults(config.faults, journal, Path(config.orders) if config.orders else None)
    faults.install()
    journal.write("started", pid=os.getpid())
    try:
        if config.spark:
            from tests.harness import driver_spark  # noqa: PLC0415 - half a second that only Spark needs

            run = driver_spark.run_example if config.example else driver_spark.run_query
            if not run(config, journal, faults):
                return 1
        else:
            run_batches(config, journal, faults)
    except DualWriteError as error:
        journal.write_error(error)
        return 1
    except BaseException as error:  # noqa: BLE001 - whatever it is, the test wants to know
        traceback.print_exc()
        journal.write("crash", type=type(error).__name__, text=str(error))
        return 2
    journal.write("finished")
    return 0


def run_batches(config: DriverConfig, journal: Journal, faults: Faults) -> None:
    """Do what a run of a query does for the sink: every batch that the checkpoint lacks, one after the other."""
    options = SinkOptions.parse(**config.sink)
    checkpoint = Path(config.checkpoint)
    faults.batch = sum(1 for _ in checkpoint.iterdir())
    times = StepTimes(SystemClock())
    with (
        open_driver(options, config.query_id, times) as (driver, database),
        work_of(options, database, config.query_id) as make_work,
    ):
        driver.recover()
        for batch in _batches(config, faults.batch):
            faults.batch = batch
            if batch not in config.left_out:
                work = make_work(batch, read_batch(config.input, batch), lambda: faults.reached("copy"))
                times.begin()
                report = driver.write(batch, work)
                journal.write("batch", batch=batch, placement=report.placement.name, attempts=report.attempts)
            # Like Spark's commit log: written when the sink has returned. A driver that dies before replays the batch.
            (checkpoint / str(batch)).touch()


def _batches(config: DriverConfig, first: int) -> Iterator[int]:
    """The batches from ``first`` on, each when its file is there."""
    folder, batch = Path(config.input), first

    def come() -> bool:
        return batch_file(folder, batch).exists() or (folder / END).exists()

    while batch < config.batches or config.follow:
        if config.follow:
            wait_until(come, deadline_s=FOLLOW_DEADLINE_S, what=f"batch {batch} of the input")
            # Files come before the end of the input does, so what is not there now never comes.
            if not batch_file(folder, batch).exists():
                return
        yield batch
        batch += 1


@contextmanager
def open_driver(
    options: SinkOptions, query_id: str, times: StepTimes | None = None
) -> Iterator[tuple[BatchDriver, Database]]:
    """The parts that `DualWriteSink` puts together for a run, with connections of their own; and the database."""
    clock = SystemClock()
    actor = Actor.of_this_process("job", options.reason)
    settings = options.store_settings()
    with (
        Cluster(options.kafka) as cluster,
        closing(SqlStateStore(options.database, settings, actor=actor)) as store,
    ):
        kafka = TransactionClient(cluster, options.transactional_id, options.kafka)
        recovery = Recovery(options, kafka=kafka, store=store, clock=clock, topics=options.all_topics)
        rules = BatchRules(
            options.transactional_id,
            options.batch_attempts_max,
            options.decision_margin_ms,
            options.connect_deadline_ms,
            options.accept_replay,
        )
        run = RunOfQuery(RunIds(query_id, str(uuid.uuid4())))
        yield BatchDriver(Sides(recovery, kafka, store, clock), run, rules, times or StepTimes(clock)), store.database


def serve() -> None:
    """Fork a driver for each line ``{"config": …, "log": …, "environment": …}``, and answer with its process id.

    The first two are paths; the environment is for a driver with Spark, and null for one without.

    When the input ends, the drivers that are left are killed: they never outlive the tests.
    """
    pa.array([b""])  # imports pandas where there is one
    drivers: set[int] = set()
    for line in sys.stdin:
        request = json.loads(line)
        pid = os.fork()
        if pid == 0:
            os._exit(_forked(request))
        drivers.add(pid)
        print(pid, flush=True)
        drivers -= _ended(drivers)
    for pid in drivers - _ended(drivers):
        os.killpg(pid, signal.SIGKILL)


def _forked(request: dict[str, Any]) -> int:
    """In the new process: leave everything of the nursery behind."""
    os.setsid()
    log = os.open(request["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    if request["environment"] is not None:
        program = [sys.executable, "-m", __spec__.name, request["config"]]
        os.execve(sys.executable, program, request["environment"])  # noqa: S606 - no shell is wanted
    status = run_driver(Path(request["config"]))
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    return status


def _ended(drivers: set[int]) -> set[int]:
    """Those that have ended. Until they are asked for here, their ids are not used again."""
    return {pid for pid in drivers if os.waitpid(pid, os.WNOHANG)[0] == pid}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
