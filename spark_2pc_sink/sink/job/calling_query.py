"""The query that calls the sink, as seen by its run: its ids, whether it continues, batches it has not passed on.

There are three kinds: a stream of classic Spark (`ClassicQuery`), one of Spark Connect, and a backfill: batch frames
written by a user under ascending numbers. Any other kind of call is refused here.

Spark Connect runs foreachBatch's function in a Python process next to the server, and tells it neither the query nor
its run. Since PySpark 4.3 even the session of a batch is a clone without queries. The session in which the stream was
started does know its queries, and its id is pickled with the sink there. If that session has exactly one query, that is
the caller; otherwise the user names it (``query_name``).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, ClassVar, Final
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from jdbc_state.sink_log import sink_log
from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options.settings import refused
from spark_2pc_sink.sink.driver.batch_values import RunIds, RunOfQuery
from spark_2pc_sink.sink.job.session_facts import WORKER_URL, beside_server, is_connect


def current_query(spark: SparkSession) -> str:
    query_id = running_query(spark)
    if query_id is None:
        raise _outside_query(
            "; if your function calls the sink in another thread, wrap the call in "
            "pyspark.inheritable_thread_target(spark), which passes the query's id on to the thread"
        )
    return query_id


def _outside_query(more: str = "") -> ConfigurationError:
    rule = "a batch is only safe to replay under the id of its query"
    remedy = "pass the sink to writeStream.foreachBatch(sink) and start() the query; write a batch DataFrame "
    remedy += f"with sink.write(df, batch_id=…){more}"
    return refused("foreachBatch", "called outside a streaming query", rule, remedy)


def running_query(spark: SparkSession) -> str | None:
    """The query on whose thread this is called, as a function of foreachBatch is; None on any other."""
    return spark.sparkContext.getLocalProperty("sql.streaming.queryId")


class CallingQuery(RunOfQuery):
    """What a run of the sink asks of the query in addition; by itself, of one that does not show more."""

    def is_current_run(self, spark: SparkSession) -> bool:
        """False after a restart of the query, which has a new run. A process that has only one run needs no check."""
        del spark
        return True

    def check(self) -> None:
        """Refuse a query whose batches cannot be replayed, or a plan that is not repeatable."""

    def is_running(self) -> bool:
        """False if the query has ended or is about to; True if Spark does not show it. Callable from any thread."""
        return True

    def is_active(self, query_id: str) -> bool:
        """False if the query is known to have ended."""
        del query_id
        return True

    def is_plain_scan(self, batch: DataFrame, tasks: int) -> bool:
        """True if the first rows of a batch are known to be cheap to get; see `classic_query`."""
        del batch, tasks
        return False

    def lag(self) -> dict[str, Any]:
        """``source_lag`` and ``event_delay_s`` of `BatchReport`, as far as Spark shows them."""
        return {}


def lag_of(progress: str) -> dict[str, Any]:
    """``source_lag`` and ``event_delay_s`` of `BatchReport` from the JSON of the previous batch's progress."""
    shown = json.loads(progress)
    found: dict[str, Any] = {}
    behind = [lag for source in shown["sources"] for lag in _records_behind(source)]
    if behind:
        found["source_lag"] = sum(behind)
    newest = shown.get("eventTime", {}).get("max")
    if newest is not None:
        finished_s = _seconds(shown["timestamp"]) + shown["durationMs"].get("triggerExecution", 0) / 1000
        found["event_delay_s"] = round(finished_s - _seconds(newest), 3)
    return found


def _records_behind(source: Mapping[str, Any]) -> Iterator[int]:
    """By partition of a Kafka source, with offsets ``{topic: {partition: offset}}``; other sources have none."""
    end, latest = source.get("endOffset"), source.get("latestOffset")
    if isinstance(end, dict) and isinstance(latest, dict):
        for topic, partitions in latest.items():
            if isinstance(partitions, dict):
                yield from (last - end.get(topic, {}).get(each, last) for each, last in partitions.items())


def _seconds(moment: str) -> float:
    """Seconds since 1970 of a UTC time in Spark's format."""
    return datetime.fromisoformat(moment.replace("Z", "+00:00")).timestamp()


#: The run id of this process: all its sinks with one transactional id are one run, and are compared with each other.
_RUN_ID: Final = str(uuid4())


class Backfill(CallingQuery):
    """One process that writes numbered frames."""

    explicit_batch_ids: ClassVar[bool] = True

    def __init__(self, transactional_id: str) -> None:
        super().__init__(RunIds(f"backfill of {transactional_id}", _RUN_ID))


def check_frame(frame: DataFrame, batch_id: object) -> None:
    """Refuse anything but a numbered batch frame outside foreachBatch."""
    if isinstance(batch_id, bool) or not isinstance(batch_id, int) or not 0 <= batch_id < 2**63:
        rule = "must be a whole number from 0 to 2**63 - 1, greater than that of every earlier batch"
        remedy = "number the parts of the backfill, for example by date: batch_id=20260131"
        raise refused("batch_id", batch_id, rule, remedy)
    if frame.isStreaming:
        rule = "Spark assigns the ids of a stream's batches"
        raise refused("write", "a streaming frame", rule, "pass the sink to writeStream.foreachBatch(sink)")
    spark = frame.sparkSession
    if beside_server() if is_connect(spark) else running_query(spark) is not None:
        rule = "ids that you assign may have gaps, so a batch that did not reach the sink would not be noticed"
        raise refused("write", "called inside foreachBatch", rule, "call the sink itself there: sink(batch, batch_id)")


_log = sink_log(__name__)


class ConnectQuery(CallingQuery):
    """One run of a streaming query, in the process that Spark created for it."""

    def __init__(self, ids: RunIds, query: StreamingQuery | None) -> None:
        super().__init__(ids)
        self._query = query

    @classmethod
    def of(cls, spark: SparkSession, query_name: str | None, started_in: str | None) -> ConnectQuery:
        """The query for which this process was made; its stream was started in ``started_in``, if that is known."""
        if not beside_server():
            raise _outside_query()
        if query_name is not None:
            return cls(RunIds(f"query {query_name!r}", _RUN_ID), None)
        # Before 4.3 a batch has the session in which the stream was started.
        active = (spark if started_in is None else session_by_id(started_in)).streams.active
        if len(active) != 1:
            shown = f"has {len(active)} queries" if active else "is unknown"
            rule = (
                "Spark Connect does not tell a foreachBatch function its query, and the session in which the "
                f"stream was started {shown}"
            )
            remedy = "pass query_name='orders' to DualWriteSink: any name that is always used with this checkpoint, "
            raise refused("query_name", None, rule, f"{remedy}and with no other")
        (query,) = active
        return cls(RunIds(str(query.id), _RUN_ID), query)

    @staticmethod
    def session_here() -> str | None:
        """The id of this thread's Spark Connect session, in which a stream is started; None without one."""
        sessions: Any = _connect_sessions()
        active = None if sessions is None else sessions.getActiveSession()
        return None if active is None else str(active.session_id)

    def check(self) -> None:
        """The client sees neither checkpoint nor trigger, which is logged once."""
        _log.warning(
            "Spark Connect shows neither checkpoint nor options of a query, so these are not checked: a missing "
            "checkpointLocation, asynchronous progress tracking, real-time mode"
        )

    def is_stopping(self) -> bool:
        return self._query is not None and not self._query.isActive

    def lag(self) -> dict[str, Any]:
        progress: Any = None if self._query is None else self._query.lastProgress
        return {} if progress is None else lag_of(progress.json)


def session_by_id(session_id: str) -> SparkSession:
    """Another session of the server next to which this process runs.

    It is never stopped: that would end the session on the server, with all its queries.
    """
    sessions: Any = _connect_sessions()
    found: SparkSession = sessions.builder.remote(f"{os.environ[WORKER_URL]};session_id={session_id}").create()
    return found


def _connect_sessions() -> Any | None:
    """Spark Connect's session class; None in a process that has not used it."""
    module = sys.modules.get("pyspark.sql.connect.session")
    return None if module is None else module.SparkSession


def check_call(batch: object, batch_id: object = None) -> None:
    """Refuse a call with anything but a Spark DataFrame and its batch id, as by ``foreach(sink)``."""
    # Duck-typed: tests and wrappers may pass a stand-in.
    if not hasattr(batch, "sparkSession"):
        if type(batch).__name__ == "DataFrame":
            value = f"the sink was called with a DataFrame of {type(batch).__module__.partition('.')[0]}"
            remedy = "pass the batch that your function gets from foreachBatch, or convert the frame with "
            remedy += "spark.createDataFrame(frame) or, from pandas on Spark, with frame.to_spark()"
            raise refused("foreachBatch", value, "the sink writes Spark DataFrames", remedy)
        rule = "the sink writes whole batches, each in one transaction"
        remedy = "use writeStream.foreachBatch(sink) instead of writeStream.foreach(sink)"
        raise refused("foreach", f"the sink was called with a {type(batch).__name__}", rule, remedy)
    if batch_id is None:
        remedy = "writeStream.foreachBatch(sink) passes one; write a batch DataFrame with sink.write(df, batch_id=…)"
        raise refused("batch_id", None, "a replay of a batch is recognised by its id", remedy)
    if not isinstance(batch_id, int):
        rule = f"must be the int that Spark passes with the batch, not a {type(batch_id).__name__}"
        raise refused("batch_id", batch_id, rule, "pass on the id that your function gets from foreachBatch")


def check_is_batch(batch: DataFrame) -> None:
    """Refuse a frame that is still a stream; its plan shows this, so only the first batch of a run is checked."""
    if batch.isStreaming:
        rule = "a streaming DataFrame does not define which rows are in this batch"
        remedy = "pass the batch that your function gets from foreachBatch, or a frame derived from it"
        raise refused("foreachBatch", "the sink was called with a stream", rule, remedy)
