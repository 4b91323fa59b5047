"""When what Spark has recorded of a batch shows that it had no rows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError

from spark_2pc_sink.recipe.placement import NOTHING_SHOWN, RunRecord
from spark_2pc_sink.sink.job.run_record import Action, Node, run_record, shows_no_rows

STREAM = (Node("Filter", frozenset({1}), None), Node("MicroBatchScan", frozenset({2}), "10"))
SCAN, CACHE = "Scan ExistingRDD", "InMemoryTableScan"


def action(
    rows: str | None = "0",
    *others: str,
    reader: str = SCAN,
    stream: tuple[Node, ...] = STREAM,
    succeeded: bool = True,
    tasks: int = 4,
) -> Action:
    """An action that reads the batch."""
    own = [Node(name, frozenset({100 + number}), None) for number, name in enumerate(others or ("CollectLimit",))]
    return Action((*own, Node(reader, frozenset({99}), rows), *stream), succeeded=succeeded, tasks=tasks)


@pytest.mark.parametrize(
    "actions",
    [
        [action()],
        [action("0", "HashAggregate", "Exchange", "AdaptiveSparkPlan", "Project")],
        [action(reader=CACHE)],
        [action(None, tasks=0)],  # no partitions, as of a source without new data
        [action(succeeded=False), action()],
        [action(None), action()],
    ],
)
def test_an_action_that_read_all_of_a_batch_and_found_nothing(actions: list[Action]) -> None:
    """A22: whatever the stream itself has read: a filter may leave nothing of it."""
    assert shows_no_rows(STREAM, actions)


@pytest.mark.parametrize(
    "actions",
    [
        [],  # nobody looked, though the progress says that no rows were read
        [action("3")],
        [action(), action("3")],
        [action("3", succeeded=False), action()],
        [action(succeeded=False)],
        [action(None)],  # its tasks did not say
        [action("0", "BroadcastHashJoin")],
        [action(stream=())],  # another frame
        [action("0", stream=(Node("Filter", frozenset({7}), "0"),))],  # the frame of another batch
        [Action((Node("LocalTableScan", frozenset({9}), "0"), *STREAM), succeeded=True, tasks=1)],
    ],
)
def test_everything_else_shows_nothing(actions: list[Action]) -> None:
    """A22: what may have had rows is not passed over."""
    assert not shows_no_rows(STREAM, actions)


def test_a_query_that_is_not_visible_shows_nothing() -> None:
    assert run_record(SimpleNamespace(), "run", None, range(1, 3)) == NOTHING_SHOWN  # type: ignore[arg-type]


def test_a_spark_without_this_record_shows_what_is_finished(caplog: pytest.LogCaptureFixture) -> None:
    """Another release may keep it elsewhere; that is said, and no batch is taken for empty."""

    def moved() -> Any:
        raise Py4JError("Method sharedState([]) does not exist")

    execution: Any = SimpleNamespace(recentProgress=lambda: [SimpleNamespace(batchId=lambda: 1)])
    session: Any = SimpleNamespace(_jsparkSession=SimpleNamespace(sharedState=moved))
    assert run_record(session, "run", execution, range(1, 3)) == RunRecord(frozenset({1}))
    assert "does not tell" in caplog.text
