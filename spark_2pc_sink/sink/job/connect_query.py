"""A streaming query of Spark Connect: foreachBatch's function runs in a Python process beside the server.

Spark tells that process neither the query nor its run. Since PySpark 4.3 even the session of a batch is a clone that
knows no query. What is left: the session in which the stream was started knows its queries, and its id travels with the
sink when that is pickled there. Where it has exactly one, that is the query; else the user names it (``query_name``).
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from jdbc_state.sink_log import sink_log
from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.sink.job.calling_query import CallingQuery, RunIds
from spark_2pc_sink.sink.job.session_facts import WORKER_URL, beside_server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

_log = sink_log(__name__)

#: Each start of a query has a Python process of its own.
_RUN_ID: Final = str(uuid4())
_NAMED: Final = (
    "pass query_name='orders' to DualWriteSink: any name that stays with this checkpoint, and that no other "
    "checkpoint has"
)


class ConnectQuery(CallingQuery):
    """One run of a streaming query, in the process that Spark has made for it.

    Args:
        ids: of the query and of this run.
        query: as the session shows it in which the stream was started; None where the user has named it.
    """

    def __init__(self, ids: RunIds, query: StreamingQuery | None) -> None:
        super().__init__(ids)
        self._query = query

    @classmethod
    def of(cls, spark: SparkSession, query_name: str | None, started_in: str | None) -> ConnectQuery:
        """The query for which this process was made.

        Args:
            spark: the session of the batch.
            query_name: the option of the sink.
            started_in: id of the session in which the stream was started; None where that is not known.

        Raises:
            ConfigurationError: no query calls, or it cannot be told which one.
        """
        if not beside_server():
            raise ConfigurationError(
                option="foreachBatch",
                value="called outside a streaming query",
                rule="a batch is only safe to replay under the id of its query",
                remedy="pass the sink to writeStream.foreachBatch(sink) and start() the query; a frame that is no "
                "stream is written with sink.write(df, batch_id=…)",
            )
        if query_name is not None:
            return cls(RunIds(f"query {query_name!r}", _RUN_ID), None)
        # Before 4.3 a batch has the session in which the stream was started.
        active = (spark if started_in is None else session_by_id(started_in)).streams.active
        if len(active) != 1:
            shown = f"has {len(active)} of them" if active else "is not known"
            raise ConfigurationError(
                option="query_name",
                value=None,
                rule="Spark Connect does not tell a foreachBatch function its query, and the session in which the "
                f"stream was started {shown}",
                remedy=_NAMED,
            )
        (query,) = active
        return cls(RunIds(str(query.id), _RUN_ID), query)

    def goes_on(self, spark: SparkSession) -> bool:
        """See `CallingQuery.goes_on`: the process ends with the run."""
        del spark
        return True

    def check(self) -> None:
        """See `CallingQuery.check`: the client sees neither checkpoint nor trigger, which is said once."""
        _log.warning(
            "Spark Connect shows neither checkpoint nor options of a query, so these are not checked: a missing "
            "checkpointLocation, asynchronous progress tracking, real-time mode"
        )

    def is_stopping(self) -> bool:
        """See `CallingQuery.is_stopping`."""
        return self._query is not None and not self._query.isActive


def session_id_here() -> str | None:
    """The id of this thread's Spark Connect session, in which a stream is started; None without one."""
    session: Any = _connect_sessions()
    active = None if session is None else session.getActiveSession()
    return None if active is None else str(active.session_id)


def session_by_id(session_id: str) -> SparkSession:
    """Another session of the server beside which this process runs.

    It is never stopped: that would end the session on the server, with all its queries.
    """
    sessions: Any = _connect_sessions()
    found: SparkSession = sessions.builder.remote(f"{os.environ[WORKER_URL]};session_id={session_id}").create()
    return found


def _connect_sessions() -> Any | None:
    """Spark Connect's class of sessions; None in a process that has not used it."""
    module = sys.modules.get("pyspark.sql.connect.session")
    return None if module is None else module.SparkSession
