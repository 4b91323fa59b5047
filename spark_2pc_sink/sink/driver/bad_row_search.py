"""The search for bad rows after a failed attempt, in a database transaction that decides nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from jdbc_state.sink_log import sink_log
from spark_2pc_sink.errors import ConfigurationError, DataError, HaltError, SupersededError
from spark_2pc_sink.sink.driver.decision_scope import DecisionScope

if TYPE_CHECKING:
    from jdbc_state import StateStore
    from spark_2pc_sink.sink.contract.batch_work import BatchWork, TransactionTicket

#: How often it is made in one batch. Once for what tasks find and once for what the database finds, as a rule; of an
#: upsert, the row that a bad one had superseded may be bad too.
SEARCHES_MAX: Final = 5


def search_bad_rows(store: StateStore, work: BatchWork, ticket: TransactionTicket, error: DataError) -> Exception:
    """Find the bad rows of a failed attempt.

    Args:
        store: gives the transaction. It is that of a decision, so that a newer claim ends it, and a superseded driver
            does not begin it; as nothing is decided in it, it is rolled back.
        work: of the batch.
        ticket: of no Kafka transaction.
        error: what the attempt failed with.

    Returns:
        ``error``, where rows were found that the next attempt leaves out; or why none could be looked for.

    Raises:
        DataError: ``error``, where the batch cannot do without single rows; or there are too many of them.
        ConfigurationError: the batch has other rows each time it is read.
        SupersededError: a newer driver has taken over.
    """
    log = sink_log(__name__, ticket.transactional_id)
    try:
        with DecisionScope(lambda: store.deciding(ticket.transactional_id, ticket.generation)) as scope:
            found = work.sift(ticket, error, scope.open_decision)
    except (ConfigurationError, DataError, SupersededError, HaltError):
        raise
    except Exception as failure:  # noqa: BLE001 - counted as a failed attempt; the next one meets the bad row again
        log.warning("bad rows could not be looked for: %s", failure)
        return failure
    if not found:
        raise error
    return error
