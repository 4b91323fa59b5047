"""The sink object by itself; what it does in a query is tested with Spark."""

from __future__ import annotations

import pickle
import threading
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from spark_2pc_sink import DualWriteSink
from spark_2pc_sink.errors import ConfigurationError, LocalProtocolError
from spark_2pc_sink.sink import sink as module

if TYPE_CHECKING:
    from collections.abc import Callable

#: For what a thread does at once.
THREAD_S = 30
BATCH: Any = mock.Mock()


def sink() -> DualWriteSink:
    return DualWriteSink(
        transactional_id="orders",
        kafka={"bootstrap.servers": "nowhere:1"},
        database="postgresql+psycopg2://nowhere/shop",
        topic="orders",
        table="orders",
    )


@pytest.mark.parametrize("made", [sink, lambda: pickle.loads(pickle.dumps(sink()))], ids=["new", "unpickled"])  # noqa: S301
def test_a_call_beside_another_is_refused_and_the_other_does_not_notice(
    made: Callable[[], DualWriteSink], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A10: parts of a batch from a pool of threads, or two queries with one object. It would supersede itself."""
    inside, go_on = threading.Event(), threading.Event()
    ended: list[str] = []

    def current_query(_spark: object) -> str:
        inside.set()
        assert go_on.wait(THREAD_S)
        raise ConfigurationError(option="foreachBatch", value="a test", rule="it ends here", remedy="none")

    def first() -> None:
        with pytest.raises(ConfigurationError, match="it ends here"):
            shared(BATCH, 7)
        ended.append("as it would alone")

    monkeypatch.setattr(module, "current_query", current_query)
    shared = made()
    thread = threading.Thread(target=first)
    thread.start()
    assert inside.wait(THREAD_S)
    with pytest.raises(LocalProtocolError, match=r"write batch 7 to 'orders'.*a sink each"):
        shared(BATCH, 7)
    go_on.set()
    thread.join(THREAD_S)
    assert ended == ["as it would alone"]
    with pytest.raises(ConfigurationError, match="it ends here"):
        shared(BATCH, 8)
