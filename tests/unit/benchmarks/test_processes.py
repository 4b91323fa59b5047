"""CPU time of a tree of processes: whose it is, and that nothing of it is lost when a process ends."""

from __future__ import annotations

import subprocess
import sys

import pytest

from benchmarks.processes import (
    ProcessFacts,
    ProcessTree,
    kinds_of,
    not_waited_for,
    spent,
)
from spark_2pc_sink.testing import wait_until

_BURN = "import time\nwhile time.process_time() < 0.3: pass"


#: Has a child that computes, and does not wait for it: as Spark's Python daemon does with workers.
_NEVER_WAITS = f"""\
import signal, subprocess, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", {_BURN + chr(10) + "input()"!r}], stdin=subprocess.PIPE, text=True)
input()
child.communicate("\\n")
print("gone", flush=True)
input()
"""


def facts(pid: int, parent: int, command: str = "", *, cpu_s: float = 1.0, gone_cpu_s: float = 0.0) -> ProcessFacts:
    return ProcessFacts(pid=pid, parent=parent, cpu_s=cpu_s, gone_cpu_s=gone_cpu_s, rss_bytes=0, command=command)


def by_pid(*processes: ProcessFacts) -> dict[int, ProcessFacts]:
    return {found.pid: found for found in processes}


def test_each_process_is_of_the_nearest_kind_above_it() -> None:
    """The workers are children of Spark's virtual machine, and the servers are children of the driver."""
    processes = [
        facts(1, 0, "python -m benchmarks"),
        facts(2, 1, "java org.apache.spark.deploy.SparkSubmit"),
        facts(3, 2, "python -m pyspark.daemon pyspark.worker"),
        facts(4, 3, "python -m pyspark.daemon pyspark.worker"),
        facts(5, 1, "java kafka.Kafka"),
        facts(6, 1, "postgres -D data"),
        facts(7, 6, "postgres: checkpointer"),
    ]
    kinds = kinds_of(by_pid(*processes), {5: "kafka", 6: "postgresql"}, driver=1)
    assert list(kinds.values()) == ["driver", "spark", "workers", "workers", "kafka", "postgresql", "postgresql"]


def test_time_that_no_parent_has_counted_is_told_by_the_ancestor_that_should_have() -> None:
    before = by_pid(
        facts(1, 0),
        facts(2, 1, gone_cpu_s=5.0),
        facts(3, 2, cpu_s=2.0, gone_cpu_s=0.5),
        facts(4, 3, cpu_s=0.25),
        facts(5, 1, cpu_s=3.0),
    )
    assert not_waited_for(before, before) == {}
    ended = by_pid(facts(1, 0, gone_cpu_s=3.0), facts(2, 1, gone_cpu_s=5.0))
    assert not_waited_for(before, ended) == pytest.approx({2: 2.75})
    partly = by_pid(facts(1, 0, gone_cpu_s=3.0), facts(2, 1, gone_cpu_s=7.0))
    assert not_waited_for(before, partly) == pytest.approx({2: 0.75})


def test_time_of_a_process_that_nobody_waits_for_is_counted() -> None:
    tree = ProcessTree({})
    before = tree.cpu_s()
    with subprocess.Popen(
        [sys.executable, "-c", _NEVER_WAITS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        wait_until(lambda: sum(spent(before, tree.cpu_s()).values()) >= 0.3, deadline_s=60, what="the child to compute")
        computed = tree.cpu_s()
        parent.stdin.write("\n")
        parent.stdin.flush()
        assert parent.stdout.readline() == "gone\n"
        # Differences of sums of floats: what is lost would be tenths of a second.
        assert min(spent(computed, tree.cpu_s()).values()) >= -0.001
        parent.communicate("\n", timeout=60)
    assert sum(spent(before, tree.cpu_s()).values()) >= 0.3
