"""A sink with a long history: up to 100 000 batches, compared with a new sink in a database of its own.

There is no Spark: the product's batch driver, recovery, state store, transaction client and record encoder write
batches of ten rows, which takes a tenth of the time. At each point the old sink and one that begins there write batches
in turns; the figure is the new one's time as a share of the old one's, so 1 means that the history costs nothing. Also
measured is what may grow with it: the sink's own tables, and memory and open files of the driver's process.
"""

from __future__ import annotations

import os
import time
import uuid
from contextlib import AbstractContextManager, ExitStack, nullcontext
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import psutil
import sqlalchemy

from benchmarks import fresh
from benchmarks.figures import Spread, falls
from benchmarks.workbench import KAFKA_JVM, POSTGRES_SETTINGS
from spark_2pc_sink.kafka.cluster import Cluster
from spark_2pc_sink.options import SinkOptions
from spark_2pc_sink.testing import KafkaBroker, PostgresServer
from spark_2pc_sink.testing.kafka_broker import create_topic
from tests.harness.driver_main import open_driver
from tests.harness.driver_rows import RowsWork

if TYPE_CHECKING:
    from benchmarks.scale import Scale

FULL_POINTS: Final = (100, 1_000, 10_000, 100_000)
QUICK_POINTS: Final = (100, 1_000, 5_000)
ROWS: Final = 10
PARTITIONS: Final = 4
#: At each point, so many turns of so many batches of either sink.
TURNS: Final = 9
TURN_BATCHES: Final = 20
#: Of a young sink before its batches count: connections and plans of statements become warm.
WARM_UP_BATCHES: Final = 40
_SIZES: Final = (
    "SELECT relname, pg_total_relation_size(oid) FROM pg_class WHERE relname LIKE 'kafka_transaction%%' "
    "AND relkind = 'r'"
)


def measure(scale: Scale) -> dict[str, Any]:
    """Figures by number of batches; the drivers are in a process that loads nothing else."""
    points = scale.pick(full=FULL_POINTS, quick=QUICK_POINTS)
    with (
        KafkaBroker(jvm_options=KAFKA_JVM) as broker,
        PostgresServer(settings=POSTGRES_SETTINGS) as postgres,
    ):
        urls = [postgres.create_database(f"bench_{number}") for number in range(len(points) + 1)]
        arguments = {"bootstrap": broker.bootstrap, "urls": urls, "points": list(points)}
        found: dict[str, Any] = fresh.call("benchmarks.many_batches", "grow_old", arguments)
    return found


def grow_old(*, bootstrap: str, urls: list[str], points: list[int]) -> dict[str, Any]:
    """Called in a process of its own: figures by number of batches."""
    found: dict[str, Any] = {}
    own, *others = urls
    with _Sink(bootstrap, own) as old:
        for point, url in zip(points, others, strict=True):
            begun_s, begun = time.perf_counter(), old.batches
            old.write(point - old.batches)
            seconds = time.perf_counter() - begun_s
            rate = (old.batches - begun) / seconds
            with _Sink(bootstrap, url) as young:
                young.write(WARM_UP_BATCHES)
                turns = [_turn(old, young, number) for number in range(TURNS)]
            found[str(point)] = {**_figures(turns), **old.sizes(), "batches_per_s": rate, "load": os.getloadavg()[0]}
            print(_line(point, found[str(point)]), flush=True)
    speeds = [each["speed"]["median"] for each in found.values()]
    return {"batches": found, "batches_steepest_fall": min(falls([1.0, *speeds])), "rows": ROWS}


def _turn(old: _Sink, young: _Sink, number: int) -> tuple[float, float]:
    """Seconds of a batch of either; who is first changes from turn to turn."""
    order = [old, young] if number % 2 else [young, old]
    taken = {id(sink): sink.write(TURN_BATCHES) for sink in order}
    return taken[id(old)], taken[id(young)]


class _Sink:
    """A sink, driven without Spark. Use it as a context manager.

    Args:
        bootstrap: of Kafka.
        url: of a database that has no sink yet.
    """

    def __init__(self, bootstrap: str, url: str) -> None:
        name = f"aged_{uuid.uuid4().hex[:12]}"
        self._url = url
        self._options = SinkOptions.parse(
            transactional_id=name,
            kafka={"bootstrap.servers": bootstrap, "compression.type": "zstd"},
            database=url,
            topic=name,
            table="target",
        )
        self._numbers = count()
        self.batches = 0
        create_topic(bootstrap, name, partitions=PARTITIONS)

    def __enter__(self) -> _Sink:
        options = self._options
        with ExitStack() as stack:
            self._engine = sqlalchemy.create_engine(self._url, poolclass=sqlalchemy.NullPool)
            with self._engine.begin() as connection:
                connection.exec_driver_sql("CREATE TABLE target (id bigint PRIMARY KEY, payload text NOT NULL)")
            # Not that of the driver: tasks have connections of their own.
            self._tasks = stack.enter_context(Cluster(options.kafka))
            self._driver, _ = stack.enter_context(open_driver(options, "aged"))
            self._driver.recover()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def write(self, batches: int) -> float:
        """Write so many batches; seconds for each."""
        begun_s = time.perf_counter()
        for _ in range(batches):
            rows = [(next(self._numbers), "a payload of some characters") for _ in range(ROWS)]
            self._driver.write(self.batches, _KeptWork(self._options, rows, self._tasks))
            self.batches += 1
        return (time.perf_counter() - begun_s) / max(1, batches)

    def sizes(self) -> dict[str, Any]:
        """What may have grown."""
        process = psutil.Process()
        with self._engine.connect() as connection:
            tables = {name: size / 1e6 for name, size in connection.exec_driver_sql(_SIZES)}
        return {"tables_mb": tables, "driver_mb": process.memory_info().rss / 1e6, "open_files": process.num_fds()}


class _KeptWork(RowsWork):
    """Rows that are sent over connections that are kept, as those of small batches are."""

    def __init__(self, options: SinkOptions, rows: list[tuple[int, str]], cluster: Cluster) -> None:
        super().__init__(options, rows, lambda: None)
        self._kept = cluster

    def cluster(self) -> AbstractContextManager[Cluster]:
        return nullcontext(self._kept)


def _figures(turns: list[tuple[float, float]]) -> dict[str, Any]:
    return {
        "speed": Spread.of([young / old for old, young in turns]).json(),
        "old_ms": Spread.of([old * 1000 for old, _ in turns]).json(),
        "young_ms": Spread.of([young * 1000 for _, young in turns]).json(),
    }


def _line(point: int, found: dict[str, Any]) -> str:
    return (
        f"{point:>7} batches: {found['speed']['median']:.2f} x the speed of a young sink "
        f"({found['speed']['low']:.2f} to {found['speed']['high']:.2f}), {found['old_ms']['median']:.1f} ms a batch; "
        f"tables {sum(found['tables_mb'].values()):.1f} MB, driver {found['driver_mb']:.0f} MB, "
        f"{found['open_files']} open files; load {found['load']:.1f}"
    )
