"""The picture of one sink: observations from status, the job's error and the topics; it determines the symptom."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from spark_2pc_sink.options import RecoveryOptions

if TYPE_CHECKING:
    from spark_2pc_sink.errors import HaltCause
    from spark_2pc_sink.recovery.report import RecoveryReport
    from spark_2pc_sink.transactions import HangingTransaction

#: Replaces the transactional id if all sinks were requested and none could be read.
EVERY_SINK: Final = "every sink"
#: A driver without a visible database session may be alive if its row was changed less than this ago: `recover` then
#: decides.
MAY_LIVE_S: Final = RecoveryOptions.takeover_grace_s


@dataclass(frozen=True, kw_only=True)
class OpenElsewhere:
    """Another producer's open transaction in a topic of the sink, known to its coordinator.

    Attributes:
        transactional_id: its owner.
        producer_id: producer id of the transaction.
        partitions: partitions of the sink's topics in which it is open.
        never_expires: True with two-phase commit: only its owner ends it.
    """

    transactional_id: str
    producer_id: int
    partitions: tuple[str, ...]
    never_expires: bool


@dataclass(frozen=True)
class Readers:
    """The open transactions that block read_committed consumers of a sink's topics.

    Attributes:
        hanging: open transactions that no coordinator will end.
        waiting: open transactions of other producers that a coordinator knows.
        problem: why the search failed, completely or for some partitions; '' if it succeeded.
    """

    hanging: tuple[HangingTransaction, ...] = ()
    waiting: tuple[OpenElsewhere, ...] = ()
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class Picture:
    """The observed state of one sink.

    Attributes:
        transactional_id: the sink's id.
        report: report of status; None if nothing could be read.
        kafka_problem: why Kafka could not be read; '' if it could.
        database_problem: why the database could not be read; '' if it could.
        unreadable: the part of the sink's data that is invalid; '' if none is.
        readers: transactions that block consumers of its topics; only searched for if the sink itself is fine.
        told: the cause in the job's error, if a person has entered it.
    """

    transactional_id: str
    report: RecoveryReport | None = None
    kafka_problem: str = ""
    database_problem: str = ""
    unreadable: str = ""
    readers: Readers = Readers()
    told: HaltCause | None = None

    @property
    def batch_id(self) -> int | None:
        """The batch of the state row; None if there is no row, or it has no batch."""
        return None if self.report is None or self.report.row is None else self.report.row.batch_id

    @property
    def driver_may_live(self) -> bool:
        """Whether the driver is or may be alive: `recover` then leaves the sink alone, unless told to take over."""
        driver = None if self.report is None else self.report.driver
        if self.report is None or driver is None:
            return False
        if driver.alive is None:
            return self.report.age_s is not None and self.report.age_s < MAY_LIVE_S
        return driver.alive
