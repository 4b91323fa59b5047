"""Recovery for operators: `recover` and `status`, without Spark. The command line is made of them."""

from __future__ import annotations

import shlex
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from jdbc_state import SqlStateStore, StoreSettings
from spark_2pc_sink.clock import Deadline, SystemClock
from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options import RecoveryOptions
from spark_2pc_sink.producer.cluster import Cluster
from spark_2pc_sink.producer.transaction_client import TransactionClient
from spark_2pc_sink.recipe.open_transaction import ABORT, COMMIT, OpenTransactionEnd
from spark_2pc_sink.recovery.recovery import OperatorDecision, Recovery, standing_row
from spark_2pc_sink.recovery.report import RecoveryReport

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jdbc_state import StateRow
    from jdbc_state.sessions import Liveness

#: For so long a driver may be missing from the database and live: it looks after its session every second, and makes it
#: anew where it broke (the database was started anew, a connection was cut).
DRIVER_RETURN_MS: Final = 5_000


def recover(
    *,
    transactional_id: str,
    kafka: Mapping[str, object],
    database: str,
    dry_run: bool = False,
    take_over: bool = True,
    decision: OperatorDecision | None = None,
    open_transaction: str | None = None,
    batch: int | None = None,
    **options: Any,
) -> RecoveryReport:
    """Settle what a crashed job left: the same that the sink does before its first batch of a run.

    It claims the sink's row, so a job that still runs with this transactional id is stopped by it (its next batch
    raises `SupersededError`; restarting it goes on where it was). It is safe to run twice.

    Args:
        transactional_id: of the sink.
        kafka: Kafka client properties, as for the sink.
        database: SQLAlchemy URL, as for the sink.
        dry_run: only say what would be done; nothing is claimed or changed.
        take_over: False to leave a row alone whose driver lives, by its database sessions; and, where they do not tell,
            one that was touched within ``takeover_grace_s``.
        decision: what a person has decided about a batch that Kafka may lack.
        open_transaction: 'commit' or 'abort': how the open transaction ends whose state row and history are lost, by
            whether the table has the rows of its records. Needs ``adopt``.
        batch: with 'commit', the batch of that transaction: the newest that the checkpoint has begun and not recorded.
            With ``decision`` the batch that was decided about, as the refusal has named it.
        **options: the other options of `RecoveryOptions`, such as ``adopt``, ``accept_loss`` or ``state_schema``.

    Returns:
        What was found and done; ``settled`` is False while something is in doubt, ``known`` where there is no row.

    Raises:
        ConfigurationError: an option is unknown or wrong.
        ClaimRefusedError, HaltError, InDoubtError: see `Recovery.run`.
        KafkaError, KafkaTimeoutError, StateStoreError: one side cannot be used.
        RemoteProtocolError: Kafka shows the transaction in a state that this version does not know.
    """
    chosen = RecoveryOptions.parse(transactional_id=transactional_id, kafka=kafka, database=database, **options)
    word = _open_transaction(open_transaction, batch, adopt=chosen.adopt, decision=decision)
    with (
        Cluster(chosen.kafka) as cluster,
        closing(SqlStateStore(chosen.database, StoreSettings(**chosen.store_settings()))) as store,
    ):
        recovery = Recovery(
            transactional_id=transactional_id,
            kafka=TransactionClient(cluster, transactional_id, chosen.kafka),
            store=store,
            clock=SystemClock(),
            settle_deadline_ms=chosen.settle_deadline_ms,
            adopt=chosen.adopt,
            accept_loss=chosen.accept_loss,
            decision=decision,
            batch_id=batch,
            open_transaction=word,
        )
        row = standing_row(store, transactional_id)
        if dry_run or (row is None and not chosen.adopt):
            return _with_driver(recovery.look(), store, row)
        if row is not None and not take_over:
            driver = _driver_of(store, row)
            if driver.alive or (driver.alive is None and row.age_s < chosen.takeover_grace_s):
                return _left_alone(_told_of(recovery.look(), driver))
        return recovery.run(query_id=None, run_id=None).report


def status(
    *, kafka: Mapping[str, object], database: str, transactional_id: str | None = None, **options: Any
) -> list[RecoveryReport]:
    """Look at both sides of one sink, or of every sink that has a state row or had one; nothing is claimed or changed.

    Args:
        kafka: Kafka client properties.
        database: SQLAlchemy URL.
        transactional_id: one sink; None for all.
        **options: the other options of `RecoveryOptions`.

    Raises:
        ConfigurationError: an option is unknown or wrong.
        KafkaError, KafkaTimeoutError, StateStoreError: one side cannot be read.
        RemoteProtocolError: Kafka shows the transaction in a state that this version does not know.
    """
    any_id = transactional_id or "status"
    chosen = RecoveryOptions.parse(transactional_id=any_id, kafka=kafka, database=database, **options)
    with (
        Cluster(chosen.kafka) as cluster,
        closing(SqlStateStore(chosen.database, StoreSettings(**chosen.store_settings()))) as store,
    ):
        every = sorted(row.transactional_id for row in [*store.read_all(), *store.read_lost()])
        ids = [transactional_id] if transactional_id else every
        return [
            _with_driver(
                Recovery(
                    transactional_id=one,
                    kafka=TransactionClient(cluster, one, chosen.kafka),
                    store=store,
                    clock=SystemClock(),
                    settle_deadline_ms=chosen.settle_deadline_ms,
                    adopt=chosen.adopt,
                ).look(),
                store,
                store.read(one),
            )
            for one in ids
        ]


def _open_transaction(
    given: str | None, batch: int | None, *, adopt: bool, decision: OperatorDecision | None
) -> OpenTransactionEnd | None:
    """What a person says of an open transaction, complete and without contradiction."""
    option, rule, remedy = "open_transaction", "", ""
    if given not in (None, COMMIT, ABORT):
        rule, remedy = f"it is {COMMIT} or {ABORT}", "pass the one that the table tells"
    elif given is not None and not adopt:
        rule, remedy = "it is about an id whose state row is lost, which has to be adopted", "pass adopt too"
    elif given == COMMIT and batch is None:
        option, rule = "batch", f"it comes with open_transaction={COMMIT!r}"
        remedy = "pass the newest batch in the checkpoint's offsets/ that is not in its commits/"
    elif batch is not None and given != COMMIT and decision is None:
        option, rule = "batch", f"it comes with open_transaction={COMMIT!r} or a decision, and with nothing else"
        remedy = "leave it out, or say what is decided about that batch"
    elif batch is not None and batch < 0:
        option, rule, remedy = "batch", "it is at least 0", "pass a batch id of the checkpoint"
    if rule:
        raise ConfigurationError(option=option, value=batch if option == "batch" else given, rule=rule, remedy=remedy)
    return None if given is None else OpenTransactionEnd(batch)


def _driver_of(store: SqlStateStore, row: StateRow) -> Liveness:
    """Whether the row's driver lives. One that is not seen may be making its session anew: it is looked for longer."""
    deadline = Deadline(SystemClock(), DRIVER_RETURN_MS)
    while True:
        driver = store.liveness(row)
        if driver.alive is not False or row.run_id is None or deadline.passed:
            return driver
        deadline.pause()


def _with_driver(report: RecoveryReport, store: SqlStateStore, row: StateRow | None) -> RecoveryReport:
    return report if row is None else _told_of(report, store.liveness(row))


def _told_of(report: RecoveryReport, driver: Liveness) -> RecoveryReport:
    return replace(report, driver_alive=driver.alive, driver=driver.detail)


def _left_alone(report: RecoveryReport) -> RecoveryReport:
    """A report of a row that was not taken over, because its driver lives or may live."""
    if report.settled:
        return report
    if report.driver_alive:
        why = f"its driver lives ({report.driver}), and settles it by itself"
    else:
        why = (
            f"whether its driver lives cannot be told ({report.driver}); the state row was touched "
            f"{report.age_s:.0f} s ago, so it may"
        )
    stop = f"spark-2pc recover --transactional-id {shlex.quote(report.transactional_id)} --take-over"
    return replace(
        report,
        actions=(),
        reason=f"{report.reason}; {why}",
        # Taking over comes last: it stops a job, and where a person has to decide it decides nothing.
        remedies=(
            "wait for the job, or stop it, and run the same command again",
            *report.remedies,
            f"{stop}: stop that driver, if it lives, and settle it now",
        ),
    )
