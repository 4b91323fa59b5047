"""Wrong use of the sink: calls that Spark makes when the sink was handed to it in another way than foreachBatch."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from spark_2pc_sink.errors import ConfigurationError

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
        ConfigurationError: a row came, as with ``foreach(sink)``, or a frame without an id.
    """
    # By what it can do: a test, or a wrapper, may pass a stand-in.
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
