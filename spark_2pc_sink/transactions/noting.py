"""Force-terminate with a note in the database of a sink: who ordered it, when and why, and what came of it.

Kafka's coordinator and the database have no transaction in common. So there are two lines: the first says that a person
is about to order it, and comes BEFORE the coordinator is asked; the second says what came of it. Where the second is
missing the process died in between, or the database was lost: `spark-2pc transactions describe` then shows how the id
stands.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from jdbc_state import StateStore
from jdbc_state.actions import FORCE_TERMINATE
from jdbc_state.sink_log import sink_log
from spark_2pc_sink.errors import DualWriteError, OutcomeUnknownError, StateStoreError
from spark_2pc_sink.transactions import ending
from spark_2pc_sink.transactions.queries import TransactionQueries
from spark_2pc_sink.transactions.values import TerminatedTransaction


def force_terminate(queries: TransactionQueries, transactional_id: str, store: StateStore) -> TerminatedTransaction:
    """See `spark_2pc_sink.transactions.ending.force_terminate`.

    Args:
        queries: to the cluster.
        transactional_id: any.
        store: takes the note, and knows who acts and why.

    Raises:
        StateStoreError: nothing could be noted before; the coordinator was not asked.
        DualWriteError: as `ending.force_terminate`, which is noted too.
    """
    store.note_action(transactional_id, None, FORCE_TERMINATE, {"outcome": "asked"})
    try:
        done = ending.force_terminate(queries, transactional_id)
    except DualWriteError as error:
        outcome = "unknown" if isinstance(error, OutcomeUnknownError) else "refused"
        problem = _note(store, transactional_id, {"outcome": outcome, "did": str(error)})
        if problem:
            sink_log(__name__, transactional_id).warning("%s", problem)
        raise
    did = {
        "outcome": "done",
        "did": f"fenced its producer; its transaction was {done.state_before}",
        "producer": f"{done.producer_id}:{done.producer_epoch}",
    }
    problem = _note(store, transactional_id, did)
    return replace(done, warnings=(*done.warnings, problem)) if problem else done


def _note(store: StateStore, transactional_id: str, detail: Mapping[str, str]) -> str:
    """Write the second line; why it could not be written, or ''. Kafka has acted by now, and that must be told."""
    try:
        store.note_action(transactional_id, None, FORCE_TERMINATE, detail)
    except StateStoreError as error:
        return f"the outcome ({detail['outcome']}) could not be noted in the database: {error}"
    return ""
