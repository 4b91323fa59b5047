"""Executors that join while a query runs: when they are tried, and what is said of them."""

from __future__ import annotations

import shlex
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import pytest
from pyspark.errors import PySparkException

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.sink.job import executors
from spark_2pc_sink.sink.job.executors import ExecutorAnswer, ExecutorWatch, passed_executors
from spark_2pc_sink.sink.stream.listener import StreamEndpoint, StreamLimits, StreamListener

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

VERSION: Final = executors._VERSION
DEADLINE_S: Final = 30


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

    def ask(self, *_: object) -> list[ExecutorAnswer]:
        self.asked += 1
        return self.answers

    def join(self, *answers: ExecutorAnswer) -> None:
        self.answers += answers
        self.members = (self.members or frozenset()) | {f"{answer.host}:{len(self.answers)}" for answer in answers}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    # What other tests have tried.
    passed_executors.clear()
    made = Cluster()
    monkeypatch.setattr(executors, "_ask", made.ask)
    return made


def watch_over(cluster: Cluster) -> ExecutorWatch:
    facts: Any = cluster
    listener = StreamListener(StreamEndpoint("127.0.0.1", "127.0.0.1", (cluster.port,)), StreamLimits())
    return ExecutorWatch(cluster.spark, "orders", facts, listener)


def answer(host: str, *, missing: str = "", unreached: str = "") -> ExecutorAnswer:
    return ExecutorAnswer(host, "/usr/bin/python3", VERSION, missing, unreached, {})


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


def test_each_that_has_joined_and_cannot_run_tasks_has_its_sentence(cluster: Cluster) -> None:
    watch = watch_over(cluster)
    watch.begin()
    cluster.join(
        answer("c", unreached="it cannot connect to driver:7100"), answer("b", missing="No module named 'pgpq'")
    )
    cluster.join(answer("d", unreached="refused"))
    with pytest.raises(ConfigurationError) as refused:
        watch.check_new()
    assert refused.value.value == "b, c, d"
    assert refused.value.rule == (
        "b: /usr/bin/python3 cannot import spark_2pc_sink: No module named 'pgpq'; "
        "c: it cannot connect to driver:7100; d: refused"
    )
    assert "docs/cluster.md" in refused.value.remedy


LOST: Final = "Lost task 1.3 in stage 2.0 (TID 9) (10.0.0.7 executor 3): org.apache.spark.api.python.PythonException:\n"


@pytest.mark.parametrize(
    ("said", "rule"),
    [
        ("ModuleNotFoundError: No module named 'pgpq'\n", "10.0.0.7: No module named 'pgpq'"),
        ('java.io.IOException: Cannot run program "/opt/python": error=2\n', '10.0.0.7: Cannot run program "/opt/py'),
    ],
)
def test_one_that_joins_in_the_middle_of_a_batch_is_named_when_a_task_fails(
    cluster: Cluster, said: str, rule: str
) -> None:
    watch = watch_over(cluster)
    watch.begin()
    with pytest.raises(ConfigurationError) as refused, watch.naming():
        raise PySparkException(LOST + said)
    assert str(refused.value.rule).startswith(rule)
    # All that are still there have their sentences.
    cluster.join(answer("10.0.0.8", missing="No module named 'pgpq'"), answer("10.0.0.7", missing="No module 'x'"))
    with pytest.raises(ConfigurationError) as refused, watch.naming():
        raise PySparkException(LOST + said)
    assert refused.value.value == "10.0.0.7, 10.0.0.8"


def test_any_other_error_of_a_job_stays_as_it_is(cluster: Cluster) -> None:
    watch = watch_over(cluster)
    with pytest.raises(PySparkException, match="ValueError"), watch.naming():
        raise PySparkException(f"{LOST}ValueError: 7")
    assert cluster.asked == 0


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


def test_a_start_asks_on_the_driver_meanwhile(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    both = threading.Barrier(2)

    def ask(*_: object) -> list[ExecutorAnswer]:
        both.wait(DEADLINE_S)
        return cluster.ask()

    monkeypatch.setattr(executors, "_ask", ask)
    with watch_over(cluster).begun():
        both.wait(DEADLINE_S)
    assert cluster.asked == 1


def test_a_broken_executor_ends_a_start_behind_the_block(cluster: Cluster) -> None:
    cluster.answers = [answer("a", missing="No module named 'pgpq'")]
    ended = []
    with pytest.raises(ConfigurationError, match="No module named 'pgpq'"), watch_over(cluster).begun():
        ended.append("block")
    assert ended == ["block"]


def test_what_the_driver_finds_comes_first_and_no_job_is_left_behind(cluster: Cluster) -> None:
    cluster.answers = [answer("a", missing="No module named 'pgpq'")]
    with pytest.raises(ConfigurationError, match="create it"), watch_over(cluster).begun():
        raise ConfigurationError(option="table", value="orders", rule="it exists", remedy="create it")
    assert cluster.asked == 1


def test_with_a_local_master_there_are_none_to_ask() -> None:
    local = Cluster("local[2]")
    with watch_over(local).begun():
        pass
    assert local.asked == 0


def test_a_second_query_of_the_application_does_not_ask_those_that_have_passed(cluster: Cluster) -> None:
    cluster.answers = [answer("a")]
    for _ in range(2):
        watch_over(cluster).begin()
    assert cluster.asked == 1


def test_another_port_of_the_driver_may_be_closed_to_those_that_have_passed(cluster: Cluster) -> None:
    for port in (7100, 7200, 7100):
        cluster.port = port
        watch_over(cluster).begin()
    assert cluster.asked == 2


def test_those_that_have_not_passed_are_asked_again(cluster: Cluster) -> None:
    cluster.answers = [answer("a", missing="No module named 'pgpq'")]
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="pgpq"):
            watch_over(cluster).begin()
    assert cluster.asked == 2
