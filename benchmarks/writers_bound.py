"""Bound of two database writers: an upsert by two backends compared with one, without Spark and without Kafka.

A million rows are staged in one table, and replace a million rows. One backend runs INSERT … ON CONFLICT and COMMIT.
Two run it for half of the keys each, then PREPARE TRANSACTION; the state row is updated and committed, which decides;
then COMMIT PREPARED twice. That is the least that a sink with two writers would do. Both ways take turns, with the
machine as it is, and while a process keeps one core busy, as Kafka and Spark's tasks do while a sink writes.

What a whole batch could gain follows from the share that the statement has of its time: see `tried.md`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final

from benchmarks.connections import connect
from benchmarks.figures import Spread
from benchmarks.inputs import NARROW
from benchmarks.processes import ProcessTree
from benchmarks.workbench import DATABASE, POSTGRES_SETTINGS
from spark_2pc_sink.testing import PostgresServer

if TYPE_CHECKING:
    from psycopg2.extensions import connection as Connection

    from benchmarks.scale import Scale

ROWS: Final = 1_000_000
FULL_TURNS, QUICK_TURNS = 7, 5
#: A turn that is not counted: the first reads the files of the tables.
WARM_UP_TURNS: Final = 1
_JOIN_DEADLINE_S: Final = 600.0
_SELECT: Final = (
    "SELECT id, 'c-' || mod(id, 50000) AS customer, mod(id + {turn}, 1000)::integer AS quantity, "
    "(id * 0.01)::numeric(12, 2) AS amount, to_timestamp(1700000000 + id / 1000.0) AS at, mod(id, 3) = 0 AS express "
    "FROM generate_series(0, {last}) AS id"
)
#: In the order of their keys, as the sink writes them, so that two sinks on one table cannot deadlock.
_UPSERT: Final = (
    "INSERT INTO target SELECT * FROM staged {where} ORDER BY id ON CONFLICT (id) DO UPDATE SET "
    "customer = EXCLUDED.customer, quantity = EXCLUDED.quantity, amount = EXCLUDED.amount, at = EXCLUDED.at, "
    "express = EXCLUDED.express"
)
_DECIDE: Final = "UPDATE state SET decision = decision + 1"


def measure(scale: Scale) -> dict[str, Any]:
    """Seconds of both ways, with both cores free and with one busy."""
    rows = scale.batch_rows(ROWS)
    settings = {**POSTGRES_SETTINGS, "max_prepared_transactions": "8"}
    found: dict[str, Any] = {"rows": rows}
    with PostgresServer(settings=settings) as server:
        url = server.create_database(DATABASE)
        tree = ProcessTree({server.pid: "postgresql"})
        with ExitStack() as stack:
            backends = [stack.enter_context(closing(connect(url))) for _ in range(3)]
            backends[2].autocommit = True
            _create(backends[2], rows)
            for name, load in (("free", nullcontext), ("busy", _busy_core)):
                with load():
                    turns = [
                        _turn(backends, rows, tree, number)
                        for number in range(WARM_UP_TURNS + scale.pick(full=FULL_TURNS, quick=QUICK_TURNS))
                    ]
                found[name] = _figures(turns[WARM_UP_TURNS:])
                print(_line(name, found[name]), flush=True)
    return found


@contextmanager
def _busy_core() -> Iterator[None]:
    """A process that never waits."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _create(backend: Connection, rows: int) -> None:
    with backend.cursor() as cursor:
        cursor.execute(f"CREATE TABLE target ({NARROW.table})")
        cursor.execute("INSERT INTO target " + _SELECT.format(turn=0, last=rows - 1))
        cursor.execute(f"CREATE UNLOGGED TABLE staged ({NARROW.table.replace(' PRIMARY KEY', '')})")
        cursor.execute("CREATE TABLE state (decision bigint)")
        cursor.execute("INSERT INTO state VALUES (0)")


def _turn(backends: list[Connection], rows: int, tree: ProcessTree, number: int) -> dict[str, float]:
    """Both ways once; who is first changes from turn to turn."""
    one, other, deciding = backends
    ways: dict[str, Callable[[], None]] = {
        "one": lambda: _one(one),
        "two": lambda: _two([one, other], deciding, rows),
    }
    taken: dict[str, float] = {}
    for way in sorted(ways, reverse=number % 2 == 0):
        _stage(deciding, rows, turn=2 * number + list(ways).index(way) + 1)
        before, begun_s = tree.cpu_s(), time.perf_counter()
        ways[way]()
        taken[f"{way}_s"] = time.perf_counter() - begun_s
        taken[f"{way}_cpu_s"] = tree.cpu_s()["postgresql"] - before["postgresql"]
    return taken


def _stage(backend: Connection, rows: int, *, turn: int) -> None:
    """Put rows into the staging table that change each row of the target, and leave nothing of the turn before."""
    with backend.cursor() as cursor:
        cursor.execute("TRUNCATE staged")
        cursor.execute("INSERT INTO staged " + _SELECT.format(turn=turn, last=rows - 1))
        cursor.execute("ANALYZE staged")
        cursor.execute("VACUUM FULL ANALYZE target")
        cursor.execute("CHECKPOINT")


def _one(backend: Connection) -> None:
    with backend.cursor() as cursor:
        cursor.execute(_UPSERT.format(where=""))
        cursor.execute(_DECIDE)
    backend.commit()


def _two(backends: list[Connection], deciding: Connection, rows: int) -> None:
    half = rows // 2
    wheres = [f"WHERE id < {half}", f"WHERE id >= {half}"]
    failed: list[BaseException] = []

    def write(backend: Connection, where: str, name: str) -> None:
        try:
            backend.tpc_begin(name)
            with backend.cursor() as cursor:
                cursor.execute(_UPSERT.format(where=where))
            backend.tpc_prepare()
        except BaseException as error:
            failed.append(error)
            raise

    threads = [
        threading.Thread(target=write, args=(backend, where, f"half_{number}"))
        for number, (backend, where) in enumerate(zip(backends, wheres, strict=True))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_JOIN_DEADLINE_S)
    if failed:
        raise failed[0]
    with deciding.cursor() as cursor:
        cursor.execute(_DECIDE)
    for backend in backends:
        backend.tpc_commit()


def _figures(turns: list[dict[str, float]]) -> dict[str, Any]:
    figures: dict[str, Any] = {name: Spread.of([turn[name] for turn in turns]).json() for name in turns[0]}
    ratios = Spread.of([turn["one_s"] / turn["two_s"] for turn in turns])
    return {**figures, "ratio": ratios.json(), "load": os.getloadavg()[0]}


def _line(name: str, found: dict[str, Any]) -> str:
    return (
        f"{name}: two writers {found['ratio']['median']:.2f} x one ({found['ratio']['low']:.2f} to "
        f"{found['ratio']['high']:.2f}); one {found['one_s']['median']:.2f} s, two {found['two_s']['median']:.2f} s; "
        f"PostgreSQL's CPU {found['one_cpu_s']['median']:.2f} and {found['two_cpu_s']['median']:.2f} s; "
        f"load {found['load']:.1f}"
    )
