"""What executors answer before the first batch, and the sentence for each host."""

from __future__ import annotations

import builtins
import dis
import json
import pickle
import socket
import sys
from importlib import metadata
from typing import TYPE_CHECKING, Any, Final

import pytest
from pyspark.errors import PySparkException

from spark_2pc_sink import __version__
from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options import KafkaOptions
from spark_2pc_sink.sink.job.executor_check import (
    ExecutorAnswer,
    ExecutorVerdict,
    judge,
    naming_executors,
    remedy_for,
)
from spark_2pc_sink.sink.job.executor_versions import LIBRARIES
from spark_2pc_sink.sink.tasks.executor_probe import Sides, probe, reach
from spark_2pc_sink.sink.transfer.staging_tables import StagingSession
from spark_2pc_sink.testing import free_port

if TYPE_CHECKING:
    from collections.abc import Mapping


OURS: Final = {"pyspark": "4.3.0", "pyarrow": "26.0.1", "pgpq": "0.12.1", "lz4": "4.4.5"}


def answer(
    host: str, *, version: str = __version__, missing: str = "", versions: Mapping[str, str] = OURS, **unreached: str
) -> ExecutorAnswer:
    return ExecutorAnswer(host, "/usr/bin/python3", version, missing, versions, unreached)


def faults(*answers: ExecutorAnswer, must_stage: bool = True) -> list[str]:
    return list(judge(answers, OURS, must_stage=must_stage).faults.values())


def warnings(*answers: ExecutorAnswer, must_stage: bool = True) -> list[str]:
    return list(judge(answers, OURS, must_stage=must_stage).warnings.values())


def test_executors_that_have_all_are_taken() -> None:
    assert judge([answer("a"), answer("b")], OURS, must_stage=True) == ExecutorVerdict({}, {})


def test_each_host_has_one_sentence() -> None:
    """Two executors of one host say the same; hosts come by name."""
    assert faults(
        answer("c", kafka="no answer from broker:9092"),
        answer("b", missing="No module named 'pgpq'"),
        answer("a", version="0.0.9"),
        answer("b", missing="No module named 'pgpq'"),
        answer("d"),
    ) == [
        f"a: /usr/bin/python3 has spark_2pc_sink 0.0.9, and the driver {__version__}",
        "b: /usr/bin/python3 cannot import spark_2pc_sink: No module named 'pgpq'",
        "c: does not reach kafka (no answer from broker:9092)",
    ]


def test_the_database_is_needed_unless_a_limit_was_given() -> None:
    """``inline_copy_bytes_max``: executors without a way to the database, for batches of that size."""
    assert faults(answer("a", database="refused")) == ["a: does not reach database (refused)"]
    assert faults(answer("a", database="refused"), must_stage=False) == []
    (said,) = warnings(answer("a", database="refused"), must_stage=False)
    assert said == "a: does not reach the database (refused), so batches above inline_copy_bytes_max will fail"


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
    with pytest.raises(ConfigurationError) as refused, naming_executors():
        raise PySparkException(said)
    assert (refused.value.value, refused.value.rule) == (host, f"{host}: {rule}")
    assert "docs/cluster.md" in refused.value.remedy


def test_any_other_error_of_a_job_stays_as_it_is() -> None:
    with pytest.raises(PySparkException, match="ValueError"), naming_executors():
        raise PySparkException(f"{LOST}ValueError: 7")


def sides(port: int) -> Sides:
    kafka = KafkaOptions.parse({"bootstrap.servers": f"127.0.0.1:{port}", "max.block.ms": 300})
    session = StagingSession(f"postgresql+psycopg2://job:secret@127.0.0.1:{port}/shop", "orders", 2, 1_000, 1_000)
    return Sides(kafka, ("orders",), session)


def test_the_probe_says_what_an_executor_does_not_reach() -> None:
    found: Mapping[str, Any] = json.loads(probe(pickle.dumps(sides(free_port())), ("pgpq", "nowhere"))(0))
    assert (found["host"], found["python"], found["version"]) == (socket.gethostname(), sys.executable, __version__)
    assert found["versions"] == {"pgpq": metadata.version("pgpq"), "nowhere": ""}
    assert found["unreached"].keys() == {"kafka", "database"}
    assert "secret" not in str(found)


@pytest.mark.parametrize(
    ("login", "said"),
    [
        (
            {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "GSSAPI"},
            "gssapi is not installed: run pip install 'spark-2pc-sink[gssapi]'",
        ),
        ({"security.protocol": "SSL", "ssl.ca.location": "/nowhere/ca.pem"}, "/nowhere/ca.pem"),
    ],
)
def test_the_probe_says_what_an_executor_lacks_to_log_in(
    monkeypatch: pytest.MonkeyPatch, login: dict[str, str], said: str
) -> None:
    monkeypatch.setitem(sys.modules, "gssapi", None)
    kafka = KafkaOptions.parse({"bootstrap.servers": "127.0.0.1:1", **login})
    found = reach(Sides(kafka, ("orders",), None))
    assert found.keys() == {"kafka"}
    assert said in found["kafka"]


def test_the_remedy_says_how_executors_get_tickets() -> None:
    login = {"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"}
    plain, kerberos = (remedy_for(KafkaOptions.parse({"bootstrap.servers": "h:1", **each})) for each in ({}, login))
    assert "docs/cluster.md" in plain
    assert kerberos.startswith(plain)
    assert "spark.executorEnv.KRB5_CLIENT_KTNAME" in kerberos
    assert "KRB5" not in plain


def test_the_probe_runs_where_the_package_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark pickles it by value: it imports nothing of ours before it is called."""
    run = probe(b"not to be read", LIBRARIES)
    monkeypatch.setitem(sys.modules, "spark_2pc_sink", None)
    found = json.loads(run(0))
    assert found["missing"] == "import of spark_2pc_sink halted; None in sys.modules"
    used = {step.argval for step in dis.get_instructions(run) if step.opname == "LOAD_GLOBAL"}
    assert used <= vars(builtins).keys()
