"""What a recovery tells people and programs."""

from __future__ import annotations

from dataclasses import dataclass

from spark_2pc_sink.errors import HaltCause


@dataclass(frozen=True)
class RecoveryReport:
    """What a recovery found and did, for people and for exit codes.

    Attributes:
        transactional_id: the sink's id.
        database_before: the state row as the claim returned it.
        kafka_before: what the coordinator said first.
        actions: what was done, or would be done by a dry run, in order; empty when nothing was in doubt.
        database_after: the state row afterwards; for a dry run the same as before.
        settled: True when nothing is in doubt any more.
        reason: why the last verdict was reached.
        remedies: what a person can do when it is not settled.
        known: False where no state row has this id: the sink has never run, or is looked for in the wrong place.
        cause: why code must not settle it, where that is so; `recover` raises `HaltError` there.
        age_s: seconds since the state row was touched, by the database's clock, where nothing was claimed. In mid-batch
            a job that is well may be in doubt for a moment.
        in_doubt_s: seconds for which the database has had a batch that Kafka lacks, by the same clock; None where it
            has none. Unlike ``age_s`` it grows while a job starts and fails again and again.
        driver_alive: whether the driver with the newest claim lives, by its database sessions; None where that cannot
            be told, or was not asked.
        driver: where it is, or why that is not known; '' where it was not asked.
    """

    transactional_id: str
    database_before: str
    kafka_before: str
    actions: tuple[str, ...]
    database_after: str
    settled: bool
    reason: str
    remedies: tuple[str, ...] = ()
    cause: HaltCause | None = None
    known: bool = True
    age_s: float | None = None
    in_doubt_s: float | None = None
    driver_alive: bool | None = None
    driver: str = ""
