"""Recovery for operators: `recover` and `status`, without Spark. The command line is made of them."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from jdbc_state import SqlStateStore, StoreSettings
from spark_2pc_sink.clock import SystemClock
from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options import RecoveryOptions
from spark_2pc_sink.producer.connection import Cluster
from spark_2pc_sink.producer.transaction_client import TransactionClient
from spark_2pc_sink.recipe.open_transaction import ABORT, COMMIT, OpenTransactionEnd
from spark_2pc_sink.recovery import OperatorDecision, Recovery, RecoveryReport, standing_row

if TYPE_CHECKING:
    from collections.abc import Mapping


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
        take_over: False to leave a row alone that was touched within ``takeover_grace_s``: its job probably runs.
        decision: what a person has decided about a batch that Kafka may lack.
        open_transaction: 'commit' or 'abort': how the open transaction ends whose state row and history are lost, by
            whether the table has the rows of its records. Needs ``adopt``.
        batch: with 'commit', the batch of that transaction: the newest that the checkpoint has begun and not recorded.
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
    word = _open_transaction(open_transaction, batch, adopt=chosen.adopt)
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
            open_transaction=word,
        )
        row = standing_row(store, transactional_id)
        if dry_run or (row is None and not chosen.adopt):
            return recovery.look()
        if row is not None and not take_over and row.age_s < chosen.takeover_grace_s:
            return _left_alone(recovery.look())
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
            Recovery(
                transactional_id=one,
                kafka=TransactionClient(cluster, one, chosen.kafka),
                store=store,
                clock=SystemClock(),
                settle_deadline_ms=chosen.settle_deadline_ms,
                adopt=chosen.adopt,
            ).look()
            for one in ids
        ]


def _open_transaction(given: str | None, batch: int | None, *, adopt: bool) -> OpenTransactionEnd | None:
    """What a person says of an open transaction, complete and without contradiction."""
    option, rule, remedy = "open_transaction", "", ""
    if given not in (None, COMMIT, ABORT):
        rule, remedy = f"it is {COMMIT} or {ABORT}", "pass the one that the table tells"
    elif given is not None and not adopt:
        rule, remedy = "it is about an id whose state row is lost, which has to be adopted", "pass adopt too"
    elif (given == COMMIT) != (batch is not None):
        option, rule = "batch", f"it comes with open_transaction={COMMIT!r}, and with nothing else"
        remedy = "pass the newest batch in the checkpoint's offsets/ that is not in its commits/"
    elif batch is not None and batch < 0:
        option, rule, remedy = "batch", "it is at least 0", "pass a batch id of the checkpoint"
    if rule:
        raise ConfigurationError(option=option, value=batch if option == "batch" else given, rule=rule, remedy=remedy)
    return None if given is None else OpenTransactionEnd(batch)


def _left_alone(report: RecoveryReport) -> RecoveryReport:
    """A report of a row that was too young to be taken over."""
    if report.settled:
        return report
    return replace(
        report,
        actions=(),
        reason=f"{report.reason}; the state row was touched {report.age_s:.0f} s ago, so its job may still be running",
        # The last one: it stops a job, and where a person has to decide it decides nothing.
        remedies=(*report.remedies, "spark-2pc recover --take-over: stop that job, if it runs, and settle it now"),
    )
