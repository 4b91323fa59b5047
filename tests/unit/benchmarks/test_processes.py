"""CPU time of a tree of processes: whose it is, and that nothing of it is lost when a process ends."""

from __future__ import annotations

import pytest

from benchmarks.processes import ProcessFacts, kinds_of, not_waited_for


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
