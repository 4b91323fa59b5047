"""Which modules of ours the rows of a micro-batch cross, and a recovery, counted from calls, without servers.

A batch goes from Arrow to the broker's acknowledgement and to COPY, by the code that runs in tasks and in the driver.
Rows cross the modules whose functions are called at least twice as often where a batch has many times the rows. The
others plan a batch, begin it and end it, or wait. Left out are modules of values that all rooms use, and what the
doubles call, of which the reference coordinator is a part.
"""

from __future__ import annotations

import re
import sys
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from types import FrameType
from typing import Any, cast

import pyarrow as pa

from spark_2pc_sink.ids import ProducerIdAndEpoch
from spark_2pc_sink.kafka.record_encoder import EncodingOptions, TopicLimits
from spark_2pc_sink.options.names import TableName
from spark_2pc_sink.sink.driver.batch_values import TransactionTicket
from spark_2pc_sink.sink.job.encode_task import run_encode_task
from spark_2pc_sink.sink.job.task_plan import LanePlan, TaskIdentity, TaskPlan
from spark_2pc_sink.sink.records import record_columns
from spark_2pc_sink.sink.records.record_columns import TopicFacts, Topics
from spark_2pc_sink.sink.records.record_side import ForwarderConnections, KnownTopics, RecordForwarder
from spark_2pc_sink.sink.report import NOTHING_WRITTEN, WrittenRows
from spark_2pc_sink.sink.rows.copy_encoder import CopyColumn, CopyPlan, Storage
from spark_2pc_sink.sink.rows.table_copy import CopyTarget, TableCopy, copy_rows, copy_statement
from spark_2pc_sink.sink.stream.attempt_input import attempt_threads
from spark_2pc_sink.sink.stream.listener import StreamEndpoint, StreamLimits, StreamListener
from tests.harness import ROOT
from tests.unit.fakes.cluster import FakeCluster
from tests.unit.kafka.support import options_for

_OF_DOUBLES = re.compile(r"/tests/|/spark_2pc_sink/reference/")
_OF_ALL = {"clock", "codes", "errors", "ids", "jdbc_state/errors", "jdbc_state/sink_log"}
_ROWS = 5_000
#: Arrow batches of a batch, and of the one that it is compared with: enough for frames and requests to become more.
_FEW, _MANY = 1, 40


class _Table:
    """`TableRows` over a cursor that only reads."""

    rowcount = copied = 0
    statement = copy_statement(TableName("t"), ["id"])

    def copy_expert(self, _statement: object, source: Any, size: int) -> None:
        while source.read(size):
            pass

    def copy(self, pieces: Any) -> None:
        """Copy by the code that copies into every table."""
        self.copied += copy_rows(cast("Any", self), self.statement, pieces)

    def delete(self) -> None: ...

    def write(self) -> None: ...

    def finish(self, _rows: int) -> WrittenRows:
        return NOTHING_WRITTEN

    def forget(self) -> None: ...


def module_name(path: str) -> str:
    """``spark_2pc_sink/sink/job/spark_batch.py`` as ``sink/job/spark_batch``; '' for a file of others."""
    if not path.startswith((f"{ROOT}/spark_2pc_sink/", f"{ROOT}/jdbc_state/")):
        return ""
    return path[len(f"{ROOT}/") :].removeprefix("spark_2pc_sink/").removesuffix(".py")


def crossed_modules() -> set[str]:
    """The modules, as ``sink/job/encode_task``."""
    few, many = calls_during(lambda: _run(_FEW)), calls_during(lambda: _run(_MANY))
    return {module for module in many if many[module] >= 2 * few[module] and _is_ours(module)}


def modules_called(function: Callable[[], object]) -> set[str]:
    return set(filter(_is_ours, calls_during(function)))


def _is_ours(module: str) -> bool:
    return not module.startswith("reference/") and module not in _OF_ALL


def calls_during(function: Callable[[], object]) -> Counter[str]:
    """How often functions of each module of ours are called, in all threads that begin meanwhile too."""
    calls: Counter[str] = Counter()

    def called(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and not _OF_DOUBLES.search(frame.f_back.f_code.co_filename if frame.f_back else ""):
            calls[module_name(frame.f_code.co_filename)] += 1

    threading.setprofile(called)
    sys.setprofile(called)
    try:
        function()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    del calls[""]
    return calls


def _run(batches: int) -> None:
    fake = FakeCluster(topics={"t": 1}, begun=ProducerIdAndEpoch(7, 1))
    kafka = options_for(fake)
    topic = TopicFacts(1, "", TopicLimits(None, create_time=True))
    connections, table = ForwarderConnections(kafka), cast("Any", _Table())
    column = CopyColumn("id", pa.int64(), nullable=False, storage=Storage(), element_oid=0, type_name="bigint")
    rows = pa.RecordBatch.from_pydict(
        {
            "id": pa.array(range(_ROWS), pa.int64()),
            record_columns.KEY: pa.array([b"%d" % number for number in range(_ROWS)]),
            record_columns.VALUE: pa.array([bytes(100)] * _ROWS),
        }
    )
    with ExitStack() as stack:
        stack.callback(fake.close)
        stack.callback(connections.drop)
        listener = stack.enter_context(StreamListener(StreamEndpoint("127.0.0.1", "127.0.0.1"), StreamLimits()))
        source = stack.enter_context(listener.open_attempt())
        plan = TaskPlan(
            encoding=EncodingOptions.of(kafka),
            lanes=(LanePlan(topic="t", row_encoder=CopyPlan((column,), row_keys=("id",))),),
            topics=Topics({"t": topic}),
            timestamp_ms=1,
            stream=source.address,
        )
        ticket = TransactionTicket("orders", ProducerIdAndEpoch(7, 1), 2, kafka_only=False)
        forwarder = RecordForwarder(source, ticket, connections, kafka, KnownTopics({"t": topic}))
        copy = TableCopy(source, lambda: table, [CopyTarget(0, lambda _: table)], idle_s=60.0, early=False)
        with attempt_threads(source, copy.task, forwarder.task):
            run_encode_task([rows] * batches, plan, TaskIdentity(0, 1))
            source.close_input()
            assert forwarder.finish().records == batches * _ROWS
