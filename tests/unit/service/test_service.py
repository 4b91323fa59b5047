"""What one process of a service does with its connections, and with what goes wrong where nobody waits."""

from __future__ import annotations

import os
from inspect import signature
from types import SimpleNamespace
from typing import Any, cast

import pytest

from spark_2pc_sink import AsyncDualWrite, DualWrite
from spark_2pc_sink.errors import InDoubtError, KafkaTimeoutError, LocalProtocolError
from spark_2pc_sink.options import KafkaOptions
from spark_2pc_sink.service import service as module
from spark_2pc_sink.service.commitment import Commitment
from spark_2pc_sink.service.id_pool import IdPool
from spark_2pc_sink.service.service import Service, TopicSizes
from tests.unit.kafka.support import PAIR
from tests.unit.service.worlds import OPTIONS
from tools.reference_pages.options import service_reference


@pytest.mark.parametrize("public", [DualWrite, AsyncDualWrite])
def test_the_signature_has_every_option_with_its_default(public: type[Any]) -> None:
    written = {
        name: None if item.default is item.empty else repr(item.default)
        for name, item in signature(public).parameters.items()
    }
    assert written == {row.names[0]: row.default for row in service_reference()}


class Pool:
    """Knows whether it was closed."""

    closed = False

    def close(self, *, limit_s: float) -> None:
        del limit_s
        self.closed = True


def started_in(process: int) -> tuple[Service, Pool]:
    service, pool = Service(OPTIONS), Pool()
    service._process, service._pool = process, cast("Any", pool)
    return service, pool


def test_a_forked_process_neither_uses_nor_closes_the_connections_of_the_other() -> None:
    """A web server that loads the application before it forks: its workers end before it does."""
    service, pool = started_in(os.getpid() + 1)
    # Another thread of the first process had it while the fork happened.
    service._lock.acquire()
    with pytest.raises(LocalProtocolError, match="started before a fork"):
        service.start()
    service.close()
    assert not pool.closed


def test_processes_that_are_forked_from_the_maker_are_runs_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else one that lives would be seen for another that has died, whose ids nobody would settle."""
    runs: list[str] = []

    class StartedPool(Pool):
        size = 1

        def __init__(self, *_: Any, connect: Any, **__: Any) -> None:
            self._connect = connect

        def start(self) -> None:
            self._connect("shop-0")

    def line(_options: Any, _transactional_id: str, _store: Any, run_id: str, _clock: Any) -> None:
        runs.append(run_id)

    monkeypatch.setattr(module, "SqlStateStore", lambda *_, **__: SimpleNamespace(survey=None))
    monkeypatch.setattr(module, "IdPool", StartedPool)
    monkeypatch.setattr(module, "ConnectedId", line)
    made_before_the_fork = Service(OPTIONS)
    for _ in range(2):
        made_before_the_fork._begin()
    assert len({*runs}) == 2


@pytest.mark.parametrize("step", ["complete", "begin_completion"])
def test_what_a_signal_raises_behind_the_decision_is_no_word_that_there_was_none(step: str) -> None:
    """As the handler of Celery's soft time limit: who repeats the block then would write it twice."""

    def interrupted(_sent: Any) -> bool:
        raise RuntimeError("soft time limit exceeded")

    released: list[Any] = []
    pool = cast("IdPool", SimpleNamespace(release=released.append))
    commitment = Commitment(pool, cast("Any", None))
    writer = SimpleNamespace(transactional_id="shop-0", complete=interrupted, begin_completion=interrupted)
    commitment._writer, commitment._sent = cast("Any", writer), cast("Any", SimpleNamespace(producer=PAIR))
    with pytest.raises(InDoubtError, match="soft time limit exceeded"):
        getattr(commitment, step)()
    assert released == [writer]


def test_who_waited_for_an_answer_about_topics_takes_that_of_who_asked() -> None:
    """While Kafka is away, threads of a service would else wait one after the other, each for its own time-out."""
    asked: list[str] = []
    times = iter([0.0, 60.0, 10.0, 61.0, 61.5])

    def partition_counts(topics: list[str]) -> dict[str, int]:
        asked.extend(topics)
        if len(asked) == 1:
            raise KafkaTimeoutError(operation="connecting", deadline_ms=60_000, last_error="refused")
        return dict.fromkeys(topics, 3)

    options = KafkaOptions.parse({"bootstrap.servers": "unused:9092"})
    cluster = SimpleNamespace(partition_counts=partition_counts, options=options)
    sizes = TopicSizes(cast("Any", cluster), cast("Any", SimpleNamespace(now_s=lambda: next(times))))
    for topic in ("orders", "invoices"):
        with pytest.raises(KafkaTimeoutError):
            sizes.count(topic)
    assert asked == ["orders"]
    assert sizes.count("invoices") == 3
