"""A backfill: batches of plain frames, which a person writes under numbers of the person's own.

It has a state row as a stream has, and takes part in the same recipe. Its query is named after the transactional id, so
that it is the same after a restart, and never that of a stream. Ids have to ascend, and may leave numbers out: a date
such as 20260131 is a good one. An id that the row has passed is one that was written, if the history says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final
from uuid import uuid4

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.sink.job.calling_query import CallingQuery, RunIds
from spark_2pc_sink.sink.job.query_checks import running_query
from spark_2pc_sink.sink.job.session_facts import beside_server, is_connect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Of this process: all its sinks of one transactional id are one run, and are compared with each other.
_RUN_ID: Final = str(uuid4())


class Backfill(CallingQuery):
    """One process that writes numbered frames.

    Args:
        transactional_id: of the sink.
    """

    explicit_batch_ids: ClassVar[bool] = True

    def __init__(self, transactional_id: str) -> None:
        super().__init__(RunIds(f"backfill of {transactional_id}", _RUN_ID))

    def goes_on(self, spark: SparkSession) -> bool:
        """See `CallingQuery.goes_on`."""
        del spark
        return True

    def check(self) -> None:
        """See `CallingQuery.check`: there is no stream."""


def check_frame(frame: DataFrame, batch_id: object) -> None:
    """Refuse what is no numbered frame.

    Args:
        frame: to be written.
        batch_id: its id.

    Raises:
        ConfigurationError: a stream, a call inside foreachBatch, or an id that is no whole number from 0 on.
    """
    if isinstance(batch_id, bool) or not isinstance(batch_id, int) or not 0 <= batch_id < 2**63:
        raise ConfigurationError(
            option="batch_id",
            value=batch_id,
            rule="it is a whole number from 0 on that fits 64 bits, greater than that of every batch before",
            remedy="number the parts of the backfill, as by their dates: batch_id=20260131",
        )
    if frame.isStreaming:
        raise ConfigurationError(
            option="write",
            value="a streaming frame",
            rule="Spark gives its batches their ids",
            remedy="pass the sink to writeStream.foreachBatch(sink)",
        )
    if _in_foreach_batch(frame.sparkSession):
        raise ConfigurationError(
            option="write",
            value="called inside foreachBatch",
            rule="numbers by hand may leave others out, so a batch that Spark has not handed over would not be noticed",
            remedy="call the sink itself there: sink(batch, batch_id)",
        )


def _in_foreach_batch(spark: SparkSession) -> bool:
    return beside_server() if is_connect(spark) else running_query(spark) is not None
