"""What executors answer before the first batch, and the sentence for each host."""

from __future__ import annotations

import builtins
import dis
import json
import pickle
import socket
import sys
from importlib import metadata
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import pytest
from pyspark.errors import PySparkException

from spark_2pc_sink import __version__
from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.sink.job.executors import LIBRARIES, ExecutorAnswer, ExecutorVerdict, judge, naming_executors, probe
from spark_2pc_sink.sink.stream.listener import StreamEndpoint, StreamLimits, StreamListener
from spark_2pc_sink.sink.stream.task_stream import StreamAddress
from spark_2pc_sink.testing import free_port

if TYPE_CHECKING:
    from collections.abc import Mapping


OURS: Final = {"pyspark": "4.3.0", "pyarrow": "26.0.1", "pgpq": "0.12.1", "lz4": "4.4.5"}


def answer(
    host: str, *, version: str = __version__, missing: str = "", versions: Mapping[str, str] = OURS, unreached: str = ""
) -> ExecutorAnswer:
    return ExecutorAnswer(host, "/usr/bin/python3", version, missing, unreached, versions)


def faults(*answers: ExecutorAnswer) -> list[str]:
    return list(judge(answers, OURS).faults.values())


def warnings(*answers: ExecutorAnswer) -> list[str]:
    return list(judge(answers, OURS).warnings.values())


def test_executors_that_have_all_are_taken() -> None:
    assert judge([answer("a"), answer("b")], OURS) == ExecutorVerdict({}, {})


def test_each_host_has_one_sentence() -> None:
    """Two executors of one host say the same; hosts come by name."""
    assert faults(
        answer("c", unreached="c to the driver at driver:7100: cannot connect"),
        answer("b", missing="No module named 'pgpq'"),
        answer("a", version="0.0.9"),
        answer("b", missing="No module named 'pgpq'"),
        answer("d"),
    ) == [
        f"a: /usr/bin/python3 has spark_2pc_sink 0.0.9, and the driver {__version__}",
        "b: /usr/bin/python3 cannot import spark_2pc_sink: No module named 'pgpq'",
        "c: c to the driver at driver:7100: cannot connect",
    ]


def test_another_minor_version_of_pyspark_is_refused() -> None:
    """A patch release speaks the same protocol; a release that is not known is not compared."""
    assert faults(answer("a", versions=OURS | {"pyspark": "4.2.1"})) == [
        "a: /usr/bin/python3 has pyspark 4.2.1, and the driver 4.3.0"
    ]
    assert faults(answer("a", versions=OURS | {"pyspark": "4.3.2"})) == []
    assert faults(answer("a", versions={})) == []


def test_another_major_version_of_an_encoder_is_said() -> None:
    """A release below 1 promises nothing to the next minor one."""
    other = OURS | {"pyarrow": "15.0.2", "pgpq": "0.13.0", "lz4": "4.3.0"}
    assert faults(answer("a", versions=other)) == []
    (said,) = warnings(answer("a", versions=other))
    assert said == (
        "a: /usr/bin/python3 encodes with other libraries than the driver (pyarrow 15.0.2 for 26.0.1, pgpq 0.13.0 for "
        "0.12.1): install the same on both"
    )


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
        (
            f"{LOST}[PYTHON_VERSION_MISMATCH] Python in worker has different version\n  at",
            "10.0.0.7",
            "[PYTHON_VERSION_MISMATCH] Python in worker has different version",
        ),
    ],
)
def test_a_job_that_the_python_of_an_executor_cannot_run_names_its_host(said: str, host: str, rule: str) -> None:
    """Spark's own error has it in the middle of a stack."""
    with pytest.raises(ConfigurationError) as refused, naming_executors(CLUSTER):
        raise PySparkException(said)
    assert (refused.value.value, refused.value.rule) == (host, f"{host}: {rule}")
    assert "docs/cluster.md" in refused.value.remedy


def test_any_other_error_of_a_job_stays_as_it_is() -> None:
    with pytest.raises(PySparkException, match="ValueError"), naming_executors(CLUSTER):
        raise PySparkException(f"{LOST}ValueError: 7")


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
