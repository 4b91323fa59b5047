"""One-sided reports: the report on a sink if only the database, or only Kafka, could be read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_2pc_sink.ids import ENDING_STATES, TransactionState
from spark_2pc_sink.recipe.resolve import RowStatus
from spark_2pc_sink.recovery.report import RecoveryReport, owed_reason, shown

if TYPE_CHECKING:
    from jdbc_state import StateRow
    from jdbc_state.sessions import Liveness
    from spark_2pc_sink.recipe.resolve import KafkaView

_UNSEEN = "Kafka was not read"


def by_the_database(row: StateRow, *, lost: bool, driver: Liveness | None) -> RecoveryReport:
    """The report on a sink if Kafka could not be read.

    Args:
        row: its state row, or the newest line of its history.
        lost: it is the latter.
        driver: whether its driver is alive.
    """
    status = RowStatus(row.status)
    if lost:
        reason = f"the state row is lost; the newest line of its history has {shown(row)}. {_UNSEEN}"
    elif status is RowStatus.DECIDED:
        reason = f"the database has decided batch {row.batch_id}. {_UNSEEN}, so whether it has followed is not known"
    elif status is RowStatus.OWED:
        reason = f"{owed_reason(row)}. {_UNSEEN}"
    else:
        reason = f"the state row has nothing in doubt. {_UNSEEN}, so an open transaction would not be seen"
    return RecoveryReport(
        transactional_id=row.transactional_id,
        settled=not lost and status in {RowStatus.NONE, RowStatus.DONE},
        dry_run=True,
        before=None if lost else row,
        row=row,
        driver=driver,
        reason=reason,
    )


def by_kafka(transactional_id: str, kafka: KafkaView, *, open_s: float | None) -> RecoveryReport:
    """The report on a transactional id if the database could not be read.

    Args:
        transactional_id: the id; only the database could tell whether it is a sink's.
        kafka: the coordinator's answer.
        open_s: seconds since its open transaction began; None if none is open.
    """
    if kafka.state is TransactionState.ONGOING:
        reason = "Kafka has a transaction of it open"
    elif kafka.state in ENDING_STATES:
        reason = "Kafka is just ending a transaction of it"
    else:
        reason = "Kafka has no transaction of it open"
    return RecoveryReport(
        transactional_id=transactional_id,
        settled=False,
        known=None,
        dry_run=True,
        kafka=kafka,
        prepared_s=open_s,
        reason=f"{reason}. Whether the database has decided it is not known, as it was not read",
    )
