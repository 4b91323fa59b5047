"""What executors answer before the first batch, and the sentence for each host."""

from __future__ import annotations

import builtins
import dis
import json
import pickle
import socket
import sys
from typing import TYPE_CHECKING, Any

import pytest

from spark_2pc_sink import __version__
from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options import KafkaOptions
from spark_2pc_sink.sink.job.executor_check import ExecutorAnswer, judge
from spark_2pc_sink.sink.tasks.executor_probe import Sides, probe
from spark_2pc_sink.sink.transfer.staging_tables import StagingSession
from spark_2pc_sink.testing import free_port

if TYPE_CHECKING:
    from collections.abc import Mapping


def answer(host: str, *, version: str = __version__, missing: str = "", **unreached: str) -> ExecutorAnswer:
    return ExecutorAnswer(host, "/usr/bin/python3", version, missing, unreached)


def refusal(*answers: ExecutorAnswer, must_stage: bool = True) -> str:
    with pytest.raises(ConfigurationError) as refused:
        judge(answers, must_stage=must_stage, transactional_id="orders")
    assert "docs/cluster.md" in refused.value.remedy
    return str(refused.value.rule)


def test_executors_that_have_all_are_taken() -> None:
    judge([answer("a"), answer("b")], must_stage=True, transactional_id="orders")


def test_each_host_has_one_sentence() -> None:
    """Two executors of one host say the same; hosts come by name."""
    said = refusal(
        answer("c", kafka="no answer from broker:9092"),
        answer("b", missing="No module named 'pgpq'"),
        answer("a", version="0.0.9"),
        answer("b", missing="No module named 'pgpq'"),
        answer("d"),
    )
    assert said.split("; ") == [
        f"a: /usr/bin/python3 has spark_2pc_sink 0.0.9, and the driver {__version__}",
        "b: /usr/bin/python3 cannot import spark_2pc_sink: No module named 'pgpq'",
        "c: does not reach kafka (no answer from broker:9092)",
    ]


def test_the_database_is_needed_unless_a_limit_was_given(caplog: pytest.LogCaptureFixture) -> None:
    """``inline_copy_bytes_max``: executors without a way to the database, for batches of that size."""
    assert refusal(answer("a", database="refused")) == "a: does not reach database (refused)"
    judge([answer("a", database="refused")], must_stage=False, transactional_id="orders")
    assert "executors on a do not reach the database (refused)" in caplog.text


def sides(port: int) -> Sides:
    kafka = KafkaOptions.parse({"bootstrap.servers": f"127.0.0.1:{port}", "max.block.ms": 300})
    session = StagingSession(f"postgresql+psycopg2://job:secret@127.0.0.1:{port}/shop", "orders", 2, 1_000, 1_000)
    return Sides(kafka, ("orders",), session)


def test_the_probe_says_what_an_executor_does_not_reach() -> None:
    found: Mapping[str, Any] = json.loads(probe(pickle.dumps(sides(free_port())))(0))
    assert (found["host"], found["python"], found["version"]) == (socket.gethostname(), sys.executable, __version__)
    assert found["unreached"].keys() == {"kafka", "database"}
    assert "secret" not in str(found)


def test_the_probe_runs_where_the_package_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark pickles it by value: it imports nothing of ours before it is called."""
    run = probe(b"not to be read")
    monkeypatch.setitem(sys.modules, "spark_2pc_sink", None)
    found = json.loads(run(0))
    assert found["missing"] == "import of spark_2pc_sink halted; None in sys.modules"
    used = {step.argval for step in dis.get_instructions(run) if step.opname == "LOAD_GLOBAL"}
    assert used <= vars(builtins).keys()
