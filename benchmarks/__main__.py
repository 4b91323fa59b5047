"""Run benchmarks: all of them, or those that are named, each in a process of its own.

    make bench                                        # everything, then RESULTS.md
    python -m benchmarks --quick                      # the same in about twenty minutes
    python -m benchmarks throughput price --rows 300000
    python -m benchmarks.report                       # RESULTS.md from the newest results

Each prints its figures and appends them as one line of JSON to the results file.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from benchmarks import fresh, results
from benchmarks.machine import facts
from benchmarks.scale import Scale

#: In the order in which they run: name and what it is about.
BENCHMARKS = {
    "cluster": "in a standalone cluster, compared with the pair and a bare COPY: first and warm batches of queries",
    "batch_sizes": "batches of 1 000 to 150 000 rows compared with the pair, in one process and on a cluster",
    "encoding": "encoding of records alone, on one core",
    "throughput": "throughput and CPU time compared with Spark's own Kafka and JDBC sinks",
    "outputs": "two topics and two tables in one decision, compared with Spark's own sinks",
    "price": "with the transaction, the state row and the generation check, and without",
    "small_batches": "batches of 1, 100 and 1 000 rows",
    "latency": "creation to visible at 5 000 rows/s",
    "growth": "batches of 0.1, 1 and 10 million rows: time and memory",
    "curves": "tasks 1 to 8, Kafka partitions 1 to 1 000",
    "start": "start of a query, new or after a kill, to its first batch being visible",
    "database_bound": "append and upsert compared with PostgreSQL's bare COPY and INSERT … ON CONFLICT",
    "many_sinks": "1 to 40 sinks at work in one database",
    "many_batches": "a sink after up to 100 000 batches, compared with a new one",
    "verify": "verify over ten million rows: time, and memory of the client",
    "json_columns": "columns of each type in the JSON of a record, against the same rows without",
}
#: Those that run when they are named.
MORE = {
    "bad_rows": "one bad row in a batch, and the option where no row is bad",
    "flink": "Apache Flink's Kafka sink and JDBC XA sink; `make flink` fetches them",
    "service": "transactions of a service compared with a plain COMMIT and an outbox with a poller",
    "tuning": "the pair's Kafka producer with other settings",
    "writers_bound": "an upsert by two backends of PostgreSQL compared with one, without Spark",
}


def main() -> None:
    """Run, and say where the figures are."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"default: {' '.join(BENCHMARKS)}; and {' '.join(MORE)}"
    )
    parser.add_argument("--rows", type=int, help="in each batch, where throughput is compared; default: 1 million")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions: ratios in about twenty minutes")
    parser.add_argument("--results", type=Path, default=results.DEFAULT_FILE, help="default: %(default)s")
    given = parser.parse_args()
    known = BENCHMARKS | MORE
    unknown = sorted(set(given.names) - known.keys())
    if unknown:
        parser.error(f"there is no benchmark {unknown[0]!r}; there are {', '.join(known)}")
    scale = Scale(quick=given.quick, rows=given.rows)
    failed = [name for name in given.names or BENCHMARKS if not _run(name, scale, given.results)]
    print(f"results are in {given.results}; `python -m benchmarks.report` makes RESULTS.md from the newest of each")
    if failed:
        message = f"failed: {', '.join(failed)}"
        raise SystemExit(message)


def _run(name: str, scale: Scale, file: Path) -> bool:
    """Run one benchmark; False when it failed, which must not lose the others."""
    print(f"=== {name}: {(BENCHMARKS | MORE)[name]}", flush=True)
    machine = facts(Path(tempfile.gettempdir()))
    begun = time.perf_counter()
    try:
        figures = fresh.call("benchmarks.scale", "measure", {"name": name, "quick": scale.quick, "rows": scale.rows})
    except SystemExit as error:
        print(f"=== {name}: {error}", flush=True)
        return False
    seconds = time.perf_counter() - begun
    results.append(
        file,
        results.Result(
            benchmark=name,
            at=results.now(),
            seconds=round(seconds, 1),
            quick=scale.quick or scale.rows is not None,
            machine=machine,
            figures=figures,
        ),
    )
    print(f"=== {name}: {seconds:.0f} s", flush=True)
    return True


if __name__ == "__main__":
    main()
