"""A bare ``COPY … FROM STDIN (FORMAT binary)`` of the rows of a source, by one client that does nothing else.

The bytes are made beforehand, and read into memory before the time is taken. Each batch is a transaction of its own,
as durable as one of the sink's, into a table with the same primary key.
"""

from __future__ import annotations

import io
import time
from contextlib import closing
from typing import TYPE_CHECKING

from benchmarks.connections import connect
from benchmarks.processes import spent
from benchmarks.runs import BatchFigures, RunFigures, check_count
from benchmarks.writers import Task, write_jdbc

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.inputs import Source
    from benchmarks.workbench import Workbench


def copy_bytes(bench: Workbench, source: Source) -> list[Path]:
    """Files with the bytes of each batch, in the order of its ids; Spark's JDBC sink has brought them to the server."""
    table = bench.new_name()
    bench.execute(f"CREATE TABLE {table} ({source.shape.table})")
    write_jdbc(bench, table, bench.spark.read.schema(source.schema(bench.spark)).parquet(str(source.path)))
    files = []
    with closing(connect(bench.servers.url)) as connection, connection.cursor() as cursor:
        for turn in range(source.batches):
            file = bench.directory / f"{table}-{turn}.copy"
            first = turn * source.rows
            chosen = f"SELECT * FROM {table} WHERE id >= {first} AND id < {first + source.rows} ORDER BY id"
            with file.open("wb") as out:
                cursor.copy_expert(f"COPY ({chosen}) TO STDOUT (FORMAT binary)", out)
            files.append(file)
    bench.execute(f"DROP TABLE {table}")
    return files


def run_copy(bench: Workbench, source: Source, files: list[Path]) -> tuple[RunFigures, str]:
    """Copy each batch into a new table; what it took, and the table, which is left. The first batch has to connect."""
    table = bench.new_name()
    bench.execute(f"CREATE TABLE {table} ({source.shape.table}) {source.shape.storage}")
    bench.settle()
    batches: list[BatchFigures] = []
    payloads = [io.BytesIO(file.read_bytes()) for file in files]
    cpu_s, begun_s = bench.tree.cpu_s(), time.perf_counter()
    with closing(connect(bench.servers.url)) as connection:
        for payload in payloads:
            with connection.cursor() as cursor:
                cursor.copy_expert(f"COPY {table} FROM STDIN (FORMAT binary)", payload)
            connection.commit()
            seconds = time.perf_counter() - begun_s
            before, cpu_s = cpu_s, bench.tree.cpu_s()
            batches.append(BatchFigures(seconds, spent(before, cpu_s)))
            begun_s = time.perf_counter()
    check_count(bench, Task(topic=table, table=table, key=None), source, len(batches))
    print(f"    bare COPY: batches took {', '.join(f'{batch.seconds:.2f}' for batch in batches)} s", flush=True)
    first, *warm = batches
    return RunFigures(first, tuple(warm), None), table
