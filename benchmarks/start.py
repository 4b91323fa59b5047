"""Start of a query: from its start to its first batch being visible in both, beyond a query that only counts.

All queries run in one warm session, on a batch of a few rows, and each is compared with a counting query, in turns
before and after it. A watcher in a process of its own notes when both sides show the rows. Two kinds of start take
turns:

* ``new``: a query that has never run, with a sink that has never run.
* ``killed``: a query whose driver died by SIGKILL between the two commits: the state row is committed, Kafka is not.
  One process has begun all of these, each as far as that, and was killed then. Its counting query starts from a copy
  of the same checkpoint.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

import psutil

from benchmarks import fresh, writers
from benchmarks.figures import Spread
from benchmarks.inputs import NARROW, Source
from benchmarks.runs import PARTITIONS
from benchmarks.small_batches import count_rows, write_source
from benchmarks.start_watch import Watcher
from benchmarks.workbench import Servers, Workbench
from spark_2pc_sink.kafka.transaction_client import EndTxnAnswer, TransactionClient
from spark_2pc_sink.sink import query_run
from spark_2pc_sink.testing import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from benchmarks.scale import Scale
    from spark_2pc_sink import DualWriteSink
    from spark_2pc_sink.ids import ProducerIdAndEpoch

ROWS: Final = 100
FULL_TURNS, QUICK_TURNS = 15, 5
#: The virtual machine compiles what the first queries run.
WARM_UP_TURNS: Final = 4
_DECIDED_DEADLINE_S: Final = 300.0
_GONE_DEADLINE_S: Final = 30.0


@dataclass(frozen=True)
class Turn:
    """One query and its counting query.

    Attributes:
        sink_s: from the query's start until both sides showed its rows.
        count_s: from the other one's start until it had counted them.
    """

    sink_s: float
    count_s: float

    @property
    def beyond_s(self) -> float:
        """What the sink adds."""
        return self.sink_s - self.count_s


def measure(scale: Scale) -> dict[str, Any]:
    """Figures of both kinds of start."""
    count = WARM_UP_TURNS + scale.pick(full=FULL_TURNS, quick=QUICK_TURNS)
    turns: dict[str, list[Turn]] = {"new": [], "killed": []}
    with Workbench() as bench, Watcher(bench.servers.bootstrap, bench.servers.url) as watcher:
        source = write_source(bench, ROWS, 1)
        names = [_new_target(bench) for _ in range(count)]
        _begin_and_kill(bench, source, names)
        for number, killed in enumerate(names):
            starts = _Starts(bench, watcher, source, count_first=number % 2 == 0)
            pair = starts.new(_new_target(bench)), starts.killed(killed)
            for kind, turn in zip(turns, pair, strict=True):
                turns[kind].append(turn)
            print("    " + ", ".join(f"{turn.sink_s:.2f}/{turn.count_s:.2f}" for turn in pair), flush=True)
    found = {kind: _figures(those[WARM_UP_TURNS:]) for kind, those in turns.items()}
    for kind, figures in found.items():
        print(_line(kind, figures), flush=True)
    return {**found, "rows": ROWS}


@dataclass(frozen=True)
class _Starts:
    """The queries of one turn.

    Attributes:
        bench: the session.
        watcher: sees the rows.
        source: of one batch.
        count_first: the counting query comes first.
    """

    bench: Workbench
    watcher: Watcher
    source: Source
    count_first: bool

    def new(self, name: str) -> Turn:
        """A query that has never run."""
        return self._turn(name, _checkpoint(self.bench, name), self.bench.directory / f"count-{name}")

    def killed(self, name: str) -> Turn:
        """A query that goes on from the checkpoint of one that was killed."""
        checkpoint, copy = _checkpoint(self.bench, name), self.bench.directory / f"count-{name}"
        shutil.copytree(checkpoint, copy)
        return self._turn(name, checkpoint, copy)

    def _turn(self, name: str, checkpoint: Path, count_checkpoint: Path) -> Turn:
        steps: dict[str, Callable[[], float]] = {
            "count_s": lambda: self._count(count_checkpoint),
            "sink_s": lambda: self._write(name, checkpoint),
        }
        order = list(steps) if self.count_first else list(reversed(steps))
        taken = {step: steps[step]() for step in order}
        self.bench.execute(f"DROP TABLE {name}")
        return Turn(**taken)

    def _count(self, checkpoint: Path) -> float:
        ended: list[float] = []

        def write(batch: DataFrame, _: int) -> None:
            if count_rows(batch) == ROWS:
                ended.append(time.time())

        begun_s = self._run(write, checkpoint)
        return ended[0] - begun_s

    def _write(self, name: str, checkpoint: Path) -> float:
        sink = _sink(self.bench, name)
        seen = self.watcher.look_at(name, partitions=PARTITIONS, rows=ROWS)
        try:
            begun_s = self._run(sink, checkpoint)
            return seen().both_s - begun_s
        finally:
            sink.close()

    def _run(self, writer: writers.Writer, checkpoint: Path) -> float:
        """Run a query to its end; when it was started."""
        frame = self.source.stream(self.bench.spark)
        writer_stream = frame.writeStream.foreachBatch(writer).option("checkpointLocation", str(checkpoint))
        begun_s = time.time()
        writer_stream.trigger(availableNow=True).start().awaitTermination()
        return begun_s


def _new_target(bench: Workbench) -> str:
    name = bench.new_name()
    bench.new_topic(name, partitions=PARTITIONS)
    bench.execute(f"CREATE TABLE {name} ({NARROW.table})")
    return name


def _sink(bench: Workbench, name: str) -> DualWriteSink:
    return writers.ours(bench, writers.Task(topic=name, table=name, key="id"))


def _checkpoint(bench: Workbench, name: str) -> Path:
    return bench.directory / f"checkpoint-{name}"


def _begin_and_kill(bench: Workbench, source: Source, names: list[str]) -> None:
    """Have a process take a batch of each sink as far as the decision, and kill it."""
    marks = bench.directory / "decided"
    marks.mkdir()
    arguments = {
        "servers": bench.servers.json(),
        "path": str(source.path),
        "checkpoints": {name: str(_checkpoint(bench, name)) for name in names},
        "marks": str(marks),
    }
    process = fresh.begin("benchmarks.start", "stop_when_decided", arguments)
    try:
        wait_until(
            lambda: process.poll() is not None or len(list(marks.iterdir())) == len(names),
            deadline_s=_DECIDED_DEADLINE_S,
            what="all batches to be decided",
        )
    finally:
        _kill(process)
    decided = len(list(marks.iterdir()))
    if decided != len(names):
        message = f"the process that was to be killed decided {decided} of {len(names)} batches"
        raise SystemExit(message)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a driver with everything that it has started."""
    driver = psutil.Process(process.pid)
    gone = [driver, *driver.children(recursive=True)]
    for each in gone:
        os.kill(each.pid, signal.SIGKILL)
    process.wait(_GONE_DEADLINE_S)
    psutil.wait_procs(gone, _GONE_DEADLINE_S)


def stop_when_decided(*, servers: dict[str, Any], path: str, checkpoints: dict[str, str], marks: str) -> None:
    """Called in a process of its own, which never comes back: each query stops where its batch is decided."""
    source = Source(Path(path), NARROW, ROWS, batches=1, files=1)

    class StopsBehindDecision(TransactionClient):
        def end(self, producer: ProducerIdAndEpoch, *, commit: bool) -> EndTxnAnswer:
            (Path(marks) / self.transactional_id).touch()
            time.sleep(_DECIDED_DEADLINE_S)
            return super().end(producer, commit=commit)

    with (
        Workbench(servers=Servers(**servers)) as bench,
        mock.patch.object(query_run, "TransactionClient", StopsBehindDecision),
    ):
        for name, checkpoint in checkpoints.items():
            stream = source.stream(bench.spark).writeStream.foreachBatch(_sink(bench, name))
            stream.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
            wait_until(
                (Path(marks) / name).exists, deadline_s=_DECIDED_DEADLINE_S, what=f"the batch of {name} to be decided"
            )
        time.sleep(_DECIDED_DEADLINE_S)


def _figures(turns: list[Turn]) -> dict[str, Any]:
    return {
        "beyond_s": Spread.of([turn.beyond_s for turn in turns]).json(),
        "sink_s": Spread.of([turn.sink_s for turn in turns]).json(),
        "count_s": Spread.of([turn.count_s for turn in turns]).json(),
        "load": os.getloadavg()[0],
    }


def _line(kind: str, found: dict[str, Any]) -> str:
    spread = found["beyond_s"]
    return (
        f"{kind:7} {spread['median']:.2f} s beyond counting ({spread['low']:.2f} to {spread['high']:.2f}, "
        f"n={spread['count']}); the sink {found['sink_s']['median']:.2f} s, counting "
        f"{found['count_s']['median']:.2f} s; load {found['load']:.1f}"
    )
