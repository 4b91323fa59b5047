"""One process of a service: its connections, what a block may do, and which batches become of its records."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from inspect import signature
from types import SimpleNamespace
from typing import Any, cast

import pytest

from spark_2pc_sink import AsyncDualWrite, DualWrite
from spark_2pc_sink.errors import ConfigurationError, InDoubtError, KafkaTimeoutError, LocalProtocolError
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.options import KafkaOptions
from spark_2pc_sink.service import service as module
from spark_2pc_sink.service.id_pool import IdPool
from spark_2pc_sink.service.service import Commitment, Service, TopicSizes
from spark_2pc_sink.service.transaction import EncodedRecords, OpenBlocks, OutgoingRecord, ServiceTransaction, encode
from spark_2pc_sink.wire.batch_reader import decode_record_batches
from spark_2pc_sink.wire.record_batch import assign_producer
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


KAFKA = {"bootstrap.servers": "unused:9092", "compression.type": "none"}


def encoded(*records: OutgoingRecord, free: int = 0, **kafka: Any) -> EncodedRecords:
    options = KafkaOptions.parse({**KAFKA, **kafka})
    return encode(records, options, partition_count=len, free=free, timestamp_ms=5)


def contents(records: EncodedRecords) -> dict[str, list[tuple[bytes | None, bytes | None]]]:
    found: dict[str, list[tuple[bytes | None, bytes | None]]] = {}
    for batch in records.batches:
        whole = assign_producer(batch.payload, producer=PAIR, base_sequence=0)
        for decoded in decode_record_batches(whole):
            found.setdefault(str(batch.partition), []).extend((each.key, each.value) for each in decoded.records())
    return found


def test_records_go_where_they_are_told_where_their_key_goes_or_to_one_partition_for_all() -> None:
    records = encoded(
        OutgoingRecord.of("abc", None, "told", partition=2),
        OutgoingRecord.of("abc", "k", b"by key"),
        OutgoingRecord.of("abc", None, "free"),
        OutgoingRecord.of("abc", None, None),
        OutgoingRecord.of("x", "ü", None, headers=[("a", "b"), ("c", None)]),
        free=7,
    )
    found = contents(records)
    assert found["x-0"] == [("ü".encode(), None)]
    assert found["abc-1"][-2:] == [(None, b"free"), (None, None)]
    everything = [each for of_partition in found.values() for each in of_partition]
    assert sorted(everything, key=str) == sorted(
        [(None, b"told"), (b"k", b"by key"), (None, b"free"), (None, None), ("ü".encode(), None)], key=str
    )
    assert records.record_count == 5


def test_a_batch_is_cut_where_it_would_become_too_large() -> None:
    sent = [OutgoingRecord.of("x", None, bytes([number]) * 40) for number in range(7)]
    records = encoded(*sent, **{"batch.size": 120})
    assert [each.record_count for each in records.batches] == [2, 2, 2, 1]
    assert {each.partition for each in records.batches} == {TopicPartition("x", 0)}
    assert records.digest == encoded(*sent).digest


def test_a_partition_that_the_topic_does_not_have_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="has 3 partitions"):
        encoded(OutgoingRecord.of("abc", None, None, partition=3))


def test_records_are_sent_while_the_block_is_open() -> None:
    transaction = ServiceTransaction()
    transaction.send("orders", "k", "v")
    for phase in ("committing", "ended"):
        transaction.phase = phase
        with pytest.raises(LocalProtocolError, match=f"in state {phase}"):
            transaction.send("orders", "k", "v")
    assert len(transaction.records) == 1


def test_another_thread_or_task_is_refused() -> None:
    transaction = ServiceTransaction()
    with ThreadPoolExecutor(1) as threads, pytest.raises(LocalProtocolError, match="another thread or task"):
        threads.submit(transaction.send, "orders", "k", "v").result()

    async def in_a_task() -> None:
        transaction.send("orders", "k", "v")

    with pytest.raises(LocalProtocolError, match="another thread or task"):
        asyncio.run(in_a_task())
    assert transaction.records == ()


def test_nobody_has_two_blocks_open() -> None:
    blocks = OpenBlocks()
    block = blocks.enter()
    with pytest.raises(LocalProtocolError, match="cannot be nested"):
        blocks.enter()
    with ThreadPoolExecutor(1) as threads:
        blocks.leave(threads.submit(blocks.enter).result())
    blocks.leave(block)
    again = blocks.enter()
    blocks.leave(block)
    with pytest.raises(LocalProtocolError, match="cannot be nested"):
        blocks.enter()
    del again


def test_a_block_that_could_not_leave_is_open_no_more() -> None:
    """A handler of a signal, as that of a soft time limit, may raise where nothing has been tried yet."""
    blocks = OpenBlocks()

    def interrupted() -> None:
        block = blocks.enter()
        raise RuntimeError(block.runner)

    with pytest.raises(RuntimeError):
        interrupted()
    blocks.enter()
