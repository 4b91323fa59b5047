"""Recovery for operators: `recover` and `status`, without Spark. The command line calls them."""

from __future__ import annotations

from contextlib import closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Literal

from jdbc_state import SqlStateStore, StoreSettings
from spark_2pc_sink.clock import Deadline, SystemClock
from spark_2pc_sink.errors import ConfigurationError, TakeOverRefusedError
from spark_2pc_sink.options import RecoveryOptions
from spark_2pc_sink.producer.cluster import Cluster
from spark_2pc_sink.producer.transaction_client import TransactionClient
from spark_2pc_sink.recipe.open_transaction import ABORT, COMMIT, OpenTransactionEnd
from spark_2pc_sink.recovery.recover_command import BARE_COMMAND, recover_command, with_command
from spark_2pc_sink.recovery.recovery import OperatorDecision, Recovery
from spark_2pc_sink.recovery.report import RecoveryReport
from spark_2pc_sink.recovery.state_row import standing_row

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from jdbc_state import StateRow
    from jdbc_state.sessions import Liveness
    from spark_2pc_sink.clock import Clock

#: For so long a driver may be missing from the database and live: it looks after its session every second, and makes it
#: anew where it broke (the database was started anew, a connection was cut).
DRIVER_RETURN_MS: Final = 5_000


def recover(
    *,
    transactional_id: str,
    kafka: Mapping[str, str],
    database: str,
    dry_run: bool = False,
    take_over: bool = False,
    decision: OperatorDecision | None = None,
    batch: int | None = None,
    open_transaction: Literal["commit", "abort"] | None = None,
    adopt: bool = RecoveryOptions.adopt,
    accept_loss: str | None = None,
    state_schema: str = RecoveryOptions.state_schema,
    state_table: str = RecoveryOptions.state_table,
    history_table: str | None = RecoveryOptions.history_table,
    history_batches: int = RecoveryOptions.history_batches,
    connect_timeout_s: int = RecoveryOptions.connect_timeout_s,
    connect_deadline_ms: int = RecoveryOptions.connect_deadline_ms,
    claim_lock_timeout_ms: int = RecoveryOptions.claim_lock_timeout_ms,
    claim_deadline_ms: int = RecoveryOptions.claim_deadline_ms,
    lock_timeout_ms: int = RecoveryOptions.lock_timeout_ms,
    statement_timeout_ms: int = RecoveryOptions.statement_timeout_ms,
    idle_in_transaction_timeout_ms: int = RecoveryOptions.idle_in_transaction_timeout_ms,
    commit_timeout_ms: int = RecoveryOptions.commit_timeout_ms,
    settle_deadline_ms: int = RecoveryOptions.settle_deadline_ms,
    takeover_grace_s: int = RecoveryOptions.takeover_grace_s,
) -> RecoveryReport:
    """Settle what a crashed job left, as the sink does before its first batch of a run. It is safe to run twice.

    It claims the sink's row: a job that still runs with this transactional id is stopped by that (its next batch raises
    `SupersededError`; started again it goes on where it was). So a row whose driver lives, or may, is left alone unless
    ``take_over`` is given.

    Args:
        transactional_id: of the sink.
        kafka: Kafka client properties, as for the sink.
        database: SQLAlchemy URL, as for the sink.
        dry_run: only say what would be done; nothing is claimed or changed.
        take_over: also where the driver lives, by its database sessions; or where they do not tell, and the row was
            touched within ``takeover_grace_s``.
        decision: what a person has decided about a batch that Kafka may lack.
        batch: with ``decision`` the batch that was decided about, as the refusal has named it. With
            ``open_transaction='commit'`` the batch of that transaction: the newest that the checkpoint has begun and
            not recorded.
        open_transaction: how the open transaction ends whose state row and history are lost, by whether the table has
            the rows of its records. Needs ``adopt``.
        adopt: this option and those below are those of `RecoveryOptions`, with its defaults.
        accept_loss: the batches that the database has lost, such as ``"41..43"``.
        state_schema: of the state table.
        state_table: its name.
        history_table: of its history.
        history_batches: lines of the history that are kept.
        connect_timeout_s: of one attempt, in seconds.
        connect_deadline_ms: for a database that has answered before, in milliseconds.
        claim_lock_timeout_ms: for a COMMIT under way, in milliseconds.
        claim_deadline_ms: for the claim as a whole, in milliseconds.
        lock_timeout_ms: for a lock, in milliseconds.
        statement_timeout_ms: of one statement, in milliseconds.
        idle_in_transaction_timeout_ms: between two statements, in milliseconds.
        commit_timeout_ms: of a COMMIT, in milliseconds.
        settle_deadline_ms: for a coordinator that is writing end markers or loading its log, in milliseconds.
        takeover_grace_s: see ``take_over``, in seconds.

    Returns:
        What was found and done; ``settled`` is False while something is in doubt, ``known`` where there is no row.

    Raises:
        ConfigurationError: an option is wrong, or contradicts another. Nothing was changed.
        TakeOverRefusedError: something is in doubt, and the driver lives, or may. Nothing was claimed or written.
        ClaimRefusedError, HaltError, InDoubtError: see `Recovery.run`.
        KafkaError, KafkaTimeoutError, StateStoreError: one side cannot be used.
        RemoteProtocolError: Kafka shows the transaction in a state that this version does not know.
    """
    options = RecoveryOptions.parse(
        transactional_id=transactional_id,
        kafka=kafka,
        database=database,
        adopt=adopt,
        accept_loss=accept_loss,
        state_schema=state_schema,
        state_table=state_table,
        history_table=history_table,
        history_batches=history_batches,
        connect_timeout_s=connect_timeout_s,
        connect_deadline_ms=connect_deadline_ms,
        claim_lock_timeout_ms=claim_lock_timeout_ms,
        claim_deadline_ms=claim_deadline_ms,
        lock_timeout_ms=lock_timeout_ms,
        statement_timeout_ms=statement_timeout_ms,
        idle_in_transaction_timeout_ms=idle_in_transaction_timeout_ms,
        commit_timeout_ms=commit_timeout_ms,
        settle_deadline_ms=settle_deadline_ms,
        takeover_grace_s=takeover_grace_s,
    )
    word = _open_transaction(open_transaction, batch, adopt=adopt, decision=decision)
    clock = SystemClock()
    with _connected(options) as (cluster, store):
        recovery = Recovery.of(
            options,
            kafka=TransactionClient(cluster, transactional_id, options.kafka),
            store=store,
            clock=clock,
            decision=decision,
            batch_id=batch,
            open_transaction=word,
        )
        row = standing_row(store, transactional_id)
        if dry_run or (row is None and not adopt):
            return _with_driver(recovery.diagnosis.look(), store, row)
        if row is not None and not take_over:
            driver = _driver_of(store, row, clock)
            if driver.alive or (driver.alive is None and row.age_s < options.takeover_grace_s):
                found = replace(recovery.diagnosis.look(), driver=driver)
                if found.settled:
                    return found
                raise _refusal(found, driver, row, recover_command(options))
        return recovery.run(query_id=None, run_id=None).report


def status(
    *,
    kafka: Mapping[str, str],
    database: str,
    transactional_id: str | None = None,
    state_schema: str = RecoveryOptions.state_schema,
    state_table: str = RecoveryOptions.state_table,
    history_table: str | None = RecoveryOptions.history_table,
    history_batches: int = RecoveryOptions.history_batches,
    connect_timeout_s: int = RecoveryOptions.connect_timeout_s,
    connect_deadline_ms: int = RecoveryOptions.connect_deadline_ms,
    lock_timeout_ms: int = RecoveryOptions.lock_timeout_ms,
    statement_timeout_ms: int = RecoveryOptions.statement_timeout_ms,
    settle_deadline_ms: int = RecoveryOptions.settle_deadline_ms,
) -> list[RecoveryReport]:
    """Look at both sides of one sink, or of every sink that has a state row or had one; nothing is claimed or changed.

    Args:
        kafka: Kafka client properties.
        database: SQLAlchemy URL.
        transactional_id: one sink; None for all.
        state_schema: this option and those below as for `recover`.
        state_table: its name.
        history_table: of its history.
        history_batches: 0 where there is no history.
        connect_timeout_s: of one attempt, in seconds.
        connect_deadline_ms: for a database that has answered before, in milliseconds.
        lock_timeout_ms: for a lock, in milliseconds.
        statement_timeout_ms: of one statement, in milliseconds.
        settle_deadline_ms: for reading the logs of one transaction, in milliseconds.

    Raises:
        ConfigurationError: an option is wrong.
        KafkaError, KafkaTimeoutError, StateStoreError: one side cannot be read.
        RemoteProtocolError: Kafka shows the transaction in a state that this version does not know.
    """
    options = RecoveryOptions.parse(
        transactional_id=transactional_id or "status",
        kafka=kafka,
        database=database,
        state_schema=state_schema,
        state_table=state_table,
        history_table=history_table,
        history_batches=history_batches,
        connect_timeout_s=connect_timeout_s,
        connect_deadline_ms=connect_deadline_ms,
        lock_timeout_ms=lock_timeout_ms,
        statement_timeout_ms=statement_timeout_ms,
        settle_deadline_ms=settle_deadline_ms,
    )
    with _connected(options) as (cluster, store):
        every = sorted(row.transactional_id for row in [*store.read_all(), *store.read_lost()])
        return [
            _with_driver(_look(replace(options, transactional_id=one), cluster, store), store, store.read(one))
            for one in ([transactional_id] if transactional_id else every)
        ]


@contextmanager
def _connected(options: RecoveryOptions) -> Iterator[tuple[Cluster, SqlStateStore]]:
    """Both sides, closed at the end."""
    with (
        Cluster(options.kafka) as cluster,
        closing(SqlStateStore(options.database, StoreSettings(**options.store_settings()))) as store,
    ):
        yield cluster, store


def _look(options: RecoveryOptions, cluster: Cluster, store: SqlStateStore) -> RecoveryReport:
    client = TransactionClient(cluster, options.transactional_id, options.kafka)
    return Recovery.of(options, kafka=client, store=store, clock=SystemClock()).diagnosis.look()


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


def _driver_of(store: SqlStateStore, row: StateRow, clock: Clock) -> Liveness:
    """Whether the row's driver lives. One that is not seen may be making its session anew: it is looked for longer."""
    deadline = Deadline(clock, DRIVER_RETURN_MS)
    while True:
        driver = store.liveness(row)
        if driver.alive is not False or row.run_id is None or deadline.passed:
            return driver
        deadline.pause()


def _with_driver(report: RecoveryReport, store: SqlStateStore, row: StateRow | None) -> RecoveryReport:
    return report if row is None else replace(report, driver=store.liveness(row))


def _refusal(found: RecoveryReport, driver: Liveness, row: StateRow, command: str) -> TakeOverRefusedError:
    """The error for a row that is not taken over, because its driver lives or may live."""
    if driver.alive:
        why = f"its driver lives ({driver.detail}), and settles it by itself"
    else:
        why = (
            f"whether its driver lives cannot be told ({driver.detail}); the state row was touched "
            f"{row.age_s:.0f} s ago, so it may"
        )
    take_over = f"{BARE_COMMAND} --take-over, or take_over=True: stop that driver, if it lives, and settle it now"
    remedies = (
        "wait for the job, or stop it, and run the same command again",
        *found.remedies,
        # Taking over comes last: it stops a job, and where a person has to decide it decides nothing.
        *with_command((take_over,), command),
    )
    return TakeOverRefusedError(
        transactional_id=found.transactional_id,
        driver=why,
        remedies=remedies,
        report=replace(found, reason=f"{found.reason}; {why}", remedies=remedies),
    )
