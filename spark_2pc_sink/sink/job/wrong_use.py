"""Wrong use of the sink: calls that are made when it was handed to Spark in another way than foreachBatch.

And calls of a job's own function with something else than the batch that it was given.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from spark_2pc_sink.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

P = ParamSpec("P")
R = TypeVar("R")


def takes_batches(method: Callable[P, R]) -> Callable[P, R]:
    """Let calls of a method of batch and id fail as `check_call` says, where Python would miss an argument."""

    @wraps(method)
    def checked(*args: P.args, **given: P.kwargs) -> R:
        check_call(*args[1:], **given)
        return method(*args, **given)

    return checked


def check_call(batch: object, batch_id: object = None) -> None:
    """Refuse a call that hands over something else than a batch and its id.

    Args:
        batch: a DataFrame of classic Spark or of Spark Connect.
        batch_id: Spark's id of it; None where none came.

    Raises:
        ConfigurationError: a row came, as with ``foreach(sink)``, or a frame of pandas; or a frame without an id of
            Spark's.
    """
    # By what it can do: a test, or a wrapper, may pass a stand-in.
    if not hasattr(batch, "sparkSession") and type(batch).__name__ == "DataFrame":
        raise ConfigurationError(
            option="foreachBatch",
            value=f"the sink was called with a DataFrame of {type(batch).__module__.partition('.')[0]}",
            rule="tasks of Spark write the rows of a frame of Spark",
            remedy="pass the batch that foreachBatch hands to your function, or what Spark makes of the frame: "
            "spark.createDataFrame(frame); of pandas on Spark, frame.to_spark()",
        )
    if not hasattr(batch, "sparkSession"):
        raise ConfigurationError(
            option="foreach",
            value=f"the sink was called with a {type(batch).__name__}",
            rule="it writes whole batches, each in one transaction",
            remedy="writeStream.foreachBatch(sink) in place of writeStream.foreach(sink)",
        )
    if batch_id is None:
        raise ConfigurationError(
            option="batch_id",
            value=None,
            rule="a frame without an id could not be told from its own repetition",
            remedy="writeStream.foreachBatch(sink) passes one; a frame that is no stream is written with "
            "sink.write(df, batch_id=…)",
        )
    if not isinstance(batch_id, int):
        raise ConfigurationError(
            option="batch_id",
            value=batch_id,
            rule=f"it is the whole number that Spark gives the batch, and came as {type(batch_id).__name__}",
            remedy="pass the id on as foreachBatch hands it to your function",
        )


def check_is_batch(batch: DataFrame) -> None:
    """Refuse a frame that is still a stream; its plan tells, so only the first batch of a run is asked.

    Args:
        batch: as the sink was called with it.

    Raises:
        ConfigurationError: it is a stream.
    """
    if batch.isStreaming:
        raise ConfigurationError(
            option="foreachBatch",
            value="the sink was called with a stream",
            rule="of a stream nobody has said which rows are in this batch",
            remedy="pass the batch that foreachBatch hands to your function, or a frame that is made of it",
        )
