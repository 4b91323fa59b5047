"""The executors that have passed the check: another query of the application does not try them again.

Since then one may have lost its way to a side. So when a batch has failed for good, all are tried again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from spark_2pc_sink.sink.transfer.staging_tables import StagingSession

if TYPE_CHECKING:
    from spark_2pc_sink.options import KafkaOptions, SinkOptions


@dataclass(frozen=True)
class Needs:
    """What a sink needs of the executors of an application; topics are looked at by the driver.

    Attributes:
        application: Spark's id of it.
        kafka: how to reach the brokers.
        database: how a task that stages rows connects; None where there is no table.
        must_stage: no rows come to the driver another way.
    """

    application: str
    kafka: KafkaOptions
    database: StagingSession | None
    must_stage: bool

    @classmethod
    def of(cls, application: str, options: SinkOptions, *, must_stage: bool) -> Needs:
        """The needs of a sink, whatever its name is."""
        has_table = any(lane.rows is not None for lane in options.lanes)
        return cls(application, options.kafka, StagingSession.of(options, "") if has_table else None, must_stage)


class TriedExecutors:
    """Remembers them, by what they were tried for. One object serves one process."""

    def __init__(self) -> None:
        self._passed: dict[Needs, frozenset[str]] = {}

    def have_passed(self, needs: Needs, executors: frozenset[str] | None) -> bool:
        """Are these the executors that have passed for this?

        Args:
            needs: of a sink.
            executors: as `SessionFacts.executors` names them; None where nobody says.
        """
        return executors is not None and executors == self._passed.get(needs)

    def note(self, needs: Needs, executors: frozenset[str] | None) -> None:
        """These have passed, and no others count any more."""
        if executors is not None:
            self._passed[needs] = executors

    def forget(self) -> None:
        """A batch has failed: try all again."""
        self._passed.clear()


#: Of this process, whose queries share the executors of their application.
tried_executors: Final = TriedExecutors()
