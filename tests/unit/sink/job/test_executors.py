"""Executors: what they answer before the first batch and when one joins, and the sentence for each host."""

from __future__ import annotations

import builtins
import dis
import json
import pickle
import shlex
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
from pyspark.errors import PySparkException

from spark_2pc_sink import __version__
from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.sink.job import executors
from spark_2pc_sink.sink.job.executors import (
    LIBRARIES,
    ExecutorAnswer,
    ExecutorVerdict,
    ExecutorWatch,
    judge,
    naming_executors,
    passed_executors,
    probe,
)
from spark_2pc_sink.sink.stream.listener import StreamEndpoint, StreamLimits, StreamListener
from spark_2pc_sink.sink.stream.task_stream import StreamAddress
from spark_2pc_sink.testing import free_port

OURS: Final = {"pyspark": "4.3.0", "pyarrow": "26.0.1", "pgpq": "0.12.1", "lz4": "4.4.5"}


def answer(
    host: str, *, version: str = __version__, missing: str = "", versions: Mapping[str, str] = OURS, unreached: str = ""
) -> ExecutorAnswer:
    return ExecutorAnswer(host, "/usr/bin/python3", version, missing, unreached, versions)


def faults(*answers: ExecutorAnswer) -> list[str]:
    return list(judge(answers, OURS).faults.values())


CLUSTER: Final[Any] = SimpleNamespace(conf={"spark.master": "spark://host:7077"})
LOST: Final = (
    "Job aborted due to stage failure: Task 1 in stage 2.0 failed 4 times, most recent failure: Lost task 1.3 in stage "
    "2.0 (TID 9) (10.0.0.7 executor 3): org.apache.spark.api.python.PythonException: Traceback:\n"
)


@pytest.mark.parametrize(
    ("said", "host", "rule"),
    [
        (
            f"{LOST}ModuleNotFoundError: No module named 'spark_2pc_sink'\n",
            "10.0.0.7",
            "No module named 'spark_2pc_sink'",
        ),
        ("ModuleNotFoundError: No module named 'pgpq'", "an executor", "No module named 'pgpq'"),
    ],
)
def test_a_job_that_the_python_of_an_executor_cannot_run_names_its_host(said: str, host: str, rule: str) -> None:
    """Spark's own error has it in the middle of a stack."""
    with pytest.raises(ConfigurationError) as refused, naming_executors(CLUSTER):
        raise PySparkException(said)
    assert (refused.value.value, refused.value.rule) == (host, f"{host}: {rule}")
    assert "docs/cluster.md" in refused.value.remedy


def test_the_probe_says_that_an_executor_does_not_reach_the_driver() -> None:
    """With host, port and the option that helps; the token is not shown."""
    address = StreamAddress("127.0.0.1", free_port(), b"secret" * 5 + b"ab")
    found: Mapping[str, Any] = json.loads(probe(pickle.dumps(address), ("pgpq", "nowhere"))(0))
    assert (found["host"], found["python"], found["version"]) == (socket.gethostname(), sys.executable, __version__)
    assert found["versions"] == {"pgpq": metadata.version("pgpq"), "nowhere": ""}
    assert f"127.0.0.1:{address.port}: cannot connect" in found["unreached"]
    assert "driver_port" in found["unreached"]
    assert "secret" not in str(found)


@pytest.mark.parametrize("encrypted", [False, True])
def test_the_probe_reaches_a_driver_that_listens(encrypted: bool) -> None:
    endpoint = StreamEndpoint("127.0.0.1", "127.0.0.1", encrypted=encrypted)
    with StreamListener(endpoint, StreamLimits()) as listener, listener.open_attempt() as attempt:
        for _ in range(2):
            assert json.loads(probe(pickle.dumps(attempt.address), LIBRARIES)(0))["unreached"] == ""


def test_the_probe_runs_where_the_package_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark pickles it by value: it imports nothing of ours before it is called."""
    run = probe(b"not to be read", LIBRARIES)
    monkeypatch.setitem(sys.modules, "spark_2pc_sink", None)
    found = json.loads(run(0))
    assert found["missing"] == "import of spark_2pc_sink halted; None in sys.modules"
    used = {step.argval for step in dis.get_instructions(run) if step.opname == "LOAD_GLOBAL"}
    assert used <= vars(builtins).keys()


def session(master: str, python: str = sys.executable) -> Any:
    return SimpleNamespace(conf={"spark.master": master}, sparkContext=SimpleNamespace(pythonExec=python))


class Cluster:
    """A cluster whose executors answer what a test says; counts how often they are all asked."""

    def __init__(self, master: str = "spark://host:7077") -> None:
        self.spark: Any = session(master)
        self.members: frozenset[str] | None = frozenset({"driver:1", "a:2"})
        self.answers: list[ExecutorAnswer] = []
        self.asked = 0
        self.port = 0

    def application(self) -> str:
        return "app-1"

    def executors(self) -> frozenset[str] | None:
        return self.members

    def tasks_at_once(self) -> int:
        return 4

    @contextmanager
    def described(self, text: str) -> Iterator[None]:
        assert text == "orders: check executors"
        yield

    def inheriting(self, function: Callable[[], None]) -> Callable[[], None]:
        return function

    def ask(self, *_: object, **__: object) -> ExecutorVerdict:
        self.asked += 1
        return judge(self.answers, {})

    def join(self, *answers: ExecutorAnswer) -> None:
        self.answers += answers
        self.members = (self.members or frozenset()) | {f"{answer.host}:{len(self.answers)}" for answer in answers}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    # What other tests have tried.
    passed_executors.clear()
    made = Cluster()
    monkeypatch.setattr(executors, "try_executors", made.ask)
    return made


def watch_over(cluster: Cluster) -> ExecutorWatch:
    facts: Any = cluster
    listener = StreamListener(StreamEndpoint("127.0.0.1", "127.0.0.1", (cluster.port,)), StreamLimits())
    return ExecutorWatch(cluster.spark, "orders", facts, listener)


def test_they_are_tried_again_only_where_one_has_joined(cluster: Cluster) -> None:
    watch = watch_over(cluster)
    watch.begin()
    watch.check_new()
    assert cluster.asked == 1
    cluster.members = frozenset({"driver:1"})
    watch.check_new()
    assert cluster.asked == 1
    cluster.join(answer("b"))
    watch.check_new()
    watch.check_new()
    assert cluster.asked == 2


def test_one_that_joins_in_the_middle_of_a_batch_is_named_when_a_task_fails(cluster: Cluster) -> None:
    said = 'java.io.IOException: Cannot run program "/opt/python": error=2\n'
    watch = watch_over(cluster)
    watch.begin()
    with pytest.raises(ConfigurationError) as refused, watch.naming():
        raise PySparkException(LOST + said)
    assert str(refused.value.rule).startswith('10.0.0.7: Cannot run program "/opt/py')
    # All that are still there have their sentences.
    cluster.join(answer("10.0.0.8", missing="No module named 'pgpq'"), answer("10.0.0.7", missing="No module 'x'"))
    with pytest.raises(ConfigurationError) as refused, watch.naming():
        raise PySparkException(LOST + said)
    assert refused.value.value == "10.0.0.7, 10.0.0.8"


def test_nothing_is_asked_where_there_are_no_executors_and_where_no_client_is_told(cluster: Cluster) -> None:
    cluster.spark = session("local[2]")
    watch = watch_over(cluster)
    watch.begin()
    watch.check_new()
    with pytest.raises(PySparkException, match="No module"), watch.naming():
        raise PySparkException(f"{LOST}ModuleNotFoundError: No module named 'of_the_users_function'")
    assert cluster.asked == 0

    cluster.spark, cluster.members = session("spark://host:7077"), None
    connect = watch_over(cluster)
    connect.begin()
    connect.check_new()
    assert cluster.asked == 1


def test_another_python_of_a_local_master_is_named_when_a_task_fails(cluster: Cluster, tmp_path: Path) -> None:
    """A virtual environment has the interpreter of another one, so its folder tells them apart."""
    other = tmp_path / "python3"
    other.symlink_to(Path(sys.executable).resolve())
    cluster.spark = session("local[2]", str(other))
    watch = watch_over(cluster)
    watch.begin()
    assert cluster.asked == 0
    cluster.answers = [answer("here", missing="No module named 'spark_2pc_sink'")]
    with pytest.raises(ConfigurationError) as refused, watch.naming():
        raise PySparkException(f"{LOST}ModuleNotFoundError: No module named 'spark_2pc_sink'")
    assert (refused.value.option, refused.value.value) == ("PYSPARK_PYTHON", str(other))
    assert f"set PYSPARK_PYTHON={shlex.quote(sys.executable)}, " in refused.value.remedy


def test_a_second_query_of_the_application_does_not_ask_those_that_have_passed(cluster: Cluster) -> None:
    cluster.answers = [answer("a")]
    for _ in range(2):
        watch_over(cluster).begin()
    assert cluster.asked == 1
