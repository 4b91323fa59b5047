"""The query that calls the sink, as its run asks about it: its ids, whether it goes on, what it has not handed over.

There are three: a stream of classic Spark (`classic_query`), one of Spark Connect (`connect_query`), and no stream at
all, where a person writes numbered frames (`backfill`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from spark_2pc_sink.recipe.handed_over import NOTHING_SHOWN, RunRecord

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class RunIds:
    """By which Spark knows one run of one streaming query.

    Attributes:
        query_id: kept in the checkpoint, the same after a restart from it.
        run_id: new at each start.
    """

    query_id: str
    run_id: str


class CallingQuery(ABC):
    """One run of a query.

    Attributes:
        ids: of the query and of this run.
        explicit_batch_ids: True where a person gives the batches their ids, which then only have to ascend.
    """

    explicit_batch_ids: ClassVar[bool] = False

    def __init__(self, ids: RunIds) -> None:
        self.ids = ids

    @abstractmethod
    def goes_on(self, spark: SparkSession) -> bool:
        """True when it is still this run that calls; a query that was started again has a run of its own.

        Args:
            spark: the session of the batch.
        """

    @abstractmethod
    def check(self) -> None:
        """Refuse a query under which a batch could not be replayed, or a plan that is not repeatable.

        Raises:
            ConfigurationError: what is refused, and what to do.
        """

    def is_stopping(self) -> bool:
        """True when the query was told to stop: another attempt of the batch would only delay that."""
        return False

    def is_running(self) -> bool:
        """False when the query has ended or is about to; True where Spark does not show it. For any thread."""
        return True

    def is_active(self, query_id: str) -> bool:
        """False when the query of an id is known to have ended."""
        del query_id
        return True

    def comes_straight(self, batch: DataFrame, tasks: int) -> bool:
        """True where the first rows of a batch are known to be cheap to get; see `first_batch`.

        Args:
            batch: the first of the run.
            tasks: how many run at a time.
        """
        del batch, tasks
        return False

    def look_back(self, missing: range) -> RunRecord:
        """What Spark shows of batches for which the sink was not called.

        Args:
            missing: their ids.
        """
        del missing
        return NOTHING_SHOWN
