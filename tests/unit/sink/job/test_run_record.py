"""What Spark has recorded of a batch, and what its gateway writes into the log."""

from __future__ import annotations

import base64
import logging
import pickle
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError

from spark_2pc_sink.recipe.placement import RunRecord
from spark_2pc_sink.sink.driver.batch_values import RunIds
from spark_2pc_sink.sink.job import session_facts
from spark_2pc_sink.sink.job.classic_query import ClassicQuery, Node, PlanExecution, shows_no_rows

STREAM = (Node("Filter", frozenset({1}), None), Node("MicroBatchScan", frozenset({2}), "10"))
SCAN, CACHE = "Scan ExistingRDD", "InMemoryTableScan"


def action(
    rows: str | None = "0",
    *others: str,
    reader: str = SCAN,
    stream: tuple[Node, ...] = STREAM,
    succeeded: bool = True,
    tasks: int = 4,
) -> PlanExecution:
    own = [Node(name, frozenset({100 + number}), None) for number, name in enumerate(others or ("CollectLimit",))]
    return PlanExecution((*own, Node(reader, frozenset({99}), rows), *stream), succeeded=succeeded, tasks=tasks)


@pytest.mark.parametrize(
    "actions",
    [
        [action("0", "HashAggregate", "Exchange", "AdaptiveSparkPlan", "Project")],
        [action(reader=CACHE)],
        [action(None, tasks=0)],  # no partitions, as of a source without new data
        [action(succeeded=False), action()],
    ],
)
def test_an_action_that_read_all_of_a_batch_and_found_nothing(actions: list[PlanExecution]) -> None:
    """A22: whatever the stream itself has read: a filter may leave nothing of it."""
    assert shows_no_rows(STREAM, actions)


@pytest.mark.parametrize(
    "actions",
    [
        [],  # nobody looked, though the progress says that no rows were read
        [action("3")],
        [action(), action("3")],
        [action(succeeded=False)],
        [action("0", "BroadcastHashJoin")],
        [action(stream=())],  # another frame
        [action("0", stream=(Node("Filter", frozenset({7}), "0"),))],  # the frame of another batch
    ],
)
def test_everything_else_shows_nothing(actions: list[PlanExecution]) -> None:
    """A22: what may have had rows is not passed over."""
    assert not shows_no_rows(STREAM, actions)


def test_a_spark_without_this_record_shows_what_is_finished(caplog: pytest.LogCaptureFixture) -> None:
    """Another release may keep it elsewhere; that is said, and no batch is taken for empty."""

    def moved() -> Any:
        raise Py4JError("Method sharedState([]) does not exist")

    execution: Any = SimpleNamespace(recentProgress=lambda: [SimpleNamespace(batchId=lambda: 1)])
    session: Any = SimpleNamespace(_jsparkSession=SimpleNamespace(sharedState=moved))
    query = ClassicQuery(session, RunIds("query", "run"), execution)
    assert query.skipped_batches(range(1, 3)) == RunRecord(frozenset({1}))
    assert "cannot determine" in caplog.text


@pytest.mark.parametrize("name", ["py4j.clientserver", "py4j.java_gateway"])
def test_bytes_are_shown_by_their_number(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """As Py4J writes a call; the rest of it stays."""
    session_facts.install_log_filter()
    encoded = base64.b64encode(pickle.dumps({"sasl_password": "planted"})).decode()
    with caplog.at_level(logging.DEBUG, logger=name):
        text = f"Command to send: i\norg.apache.PythonFunction\nj{encoded}\nro12\ne\n"
        logging.getLogger(name).debug(text)
        logging.getLogger(name).debug("Answer received: %s", "!yro13")
    assert encoded[:32] not in caplog.text
    assert f"PythonFunction\nj({len(encoded)} characters of Base64)\nro12" in caplog.text
    assert "!yro13" in caplog.text
