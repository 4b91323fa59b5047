"""The sink object, the counts of its report and the exit code of its query; a query is tested with Spark."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest

from spark_2pc_sink import DualWriteSink
from spark_2pc_sink.errors import ConfigurationError, LocalProtocolError
from spark_2pc_sink.sink import sink as module
from spark_2pc_sink.sink.job.calling_query import Backfill, CallingQuery
from spark_2pc_sink.sink.job.classic_query import ClassicQuery
from spark_2pc_sink.sink.job_end import exit_code_of

#: For what a thread does at once.
THREAD_S = 30
BATCH: Any = mock.Mock()


def sink(**options: Any) -> DualWriteSink:
    return DualWriteSink(
        transactional_id="orders",
        kafka={"bootstrap.servers": "nowhere:1"},
        database="postgresql+psycopg2://nowhere/shop",
        topic="orders",
        table="orders",
        **options,
    )


def impatient_sink() -> DualWriteSink:
    return sink(claim_lock_timeout_ms=100, claim_deadline_ms=100)


class Calls:
    """Calls of a sink, each of which ends when it may."""

    def __init__(self) -> None:
        self.inside, self.go_on = threading.Event(), threading.Event()
        self.ended: list[int] = []

    def find_query(self, _spark: object) -> Any:
        self.inside.set()
        assert self.go_on.wait(THREAD_S)
        raise ConfigurationError(option="foreachBatch", value="a test", rule="it ends here", remedy="none")

    def call(self, shared: DualWriteSink, batch_id: int) -> None:
        with pytest.raises(ConfigurationError, match="it ends here"):
            shared(BATCH, batch_id)
        self.ended.append(batch_id)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    calls = Calls()
    monkeypatch.setattr(ClassicQuery, "of", calls.find_query)
    return calls


@pytest.mark.parametrize(
    "made",
    [impatient_sink, lambda: pickle.loads(pickle.dumps(impatient_sink()))],  # noqa: S301
    ids=["new", "unpickled"],
)
def test_a_call_beside_another_is_refused_and_the_other_does_not_notice(
    made: Callable[[], DualWriteSink], calls: Calls
) -> None:
    """A10: parts of a batch from a pool of threads, or two queries with one object. It would supersede itself."""
    shared = made()
    first = threading.Thread(target=calls.call, args=(shared, 7))
    first.start()
    assert calls.inside.wait(THREAD_S)
    with pytest.raises(LocalProtocolError, match=r"write batch 7 to 'orders'.*its own sink"):
        shared(BATCH, 7)
    calls.go_on.set()
    first.join(THREAD_S)
    calls.call(shared, 8)
    assert calls.ended == [7, 8]


def test_a_call_waits_for_that_of_a_query_that_was_stopped(calls: Calls) -> None:
    """A14: Spark does not wait for Python when it stops a query, and the same object may be started again at once."""
    shared = sink()
    first = threading.Thread(target=calls.call, args=(shared, 7))
    first.start()
    assert calls.inside.wait(THREAD_S)
    again = threading.Thread(target=calls.call, args=(shared, 8))
    again.start()
    calls.go_on.set()
    for thread in (first, again):
        thread.join(THREAD_S)
    assert calls.ended == [7, 8]


def test_a_sink_is_closed_once_and_can_be_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a notebook the query ends and the process goes on, and so would the connections."""
    runs: list[mock.Mock] = []

    def start(_options: object, query: CallingQuery, _spark: object) -> mock.Mock:
        runs.append(mock.Mock(query=query))
        return runs[-1]

    monkeypatch.setattr(module, "QueryRun", start)
    monkeypatch.setattr(ClassicQuery, "of", lambda _spark: Backfill("orders"))
    shared = sink()
    shared.close()
    shared(BATCH, 7)
    shared.close()
    shared.close()
    shared(BATCH, 8)
    assert [run.close.call_count for run in runs] == [1, 0]


_SPARK = '[STREAM_FAILED] Query [id = 1] terminated with exception: Traceback (most recent call last):\n  File "x"\n'


@pytest.mark.parametrize(
    ("names", "code"),
    [
        (["ClaimRefusedError"], 3),
        (["StateStoreError", "HaltError"], 3),
        (["ConfigurationError"], 2),
        (["SupersededError"], 1),
        (["NoSuchError"], 1),
        ([], 1),
    ],
)
def test_the_last_error_of_the_package_tells(names: list[str], code: int) -> None:
    """Those before it are what it was raised from."""
    lines = [f"spark_2pc_sink.errors.{name}: table orders refused a row\n\n" for name in names]
    assert exit_code_of(_SPARK + "During handling of the above:\n".join(lines) + "\tat java.lang.Thread.run") == code
