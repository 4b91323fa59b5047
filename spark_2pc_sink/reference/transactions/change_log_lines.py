"""Log lines of the coordinator: one for each change of a transactional id that a person may have to follow later.

What takes an id over, or ends a transaction that its client did not end, is INFO; what happens in every transaction is
DEBUG. Partitions that join have no line.
"""

from __future__ import annotations

import logging

from spark_2pc_sink.reference.coordinator import Plan, SendMarkers, TransactionMetadata, TransactionState
from spark_2pc_sink.reference.coordinator.plans import InitProducerIdReply
from spark_2pc_sink.reference.coordinator.states import COMPLETION, DECIDED


def log_change(log: logging.Logger, plan: Plan, after: TransactionMetadata | None) -> None:
    """Log a plan whose record is durable.

    Args:
        log: where to.
        plan: that was carried out.
        after: the id as it is now; None where it was removed.
    """
    before = plan.reserved
    named = None if before is None else _name(plan, before, after)
    if before is None or named is None:
        return
    level, what = named
    if not log.isEnabledFor(level):
        return
    if after is None:
        log.log(level, "%s: %s, %s", before.transactional_id, what, _shown(before))
    else:
        rotated = ", new producer id" if after.client_pair.producer_id != before.client_pair.producer_id else ""
        log.log(level, "%s: %s, %s -> %s%s", before.transactional_id, what, _shown(before), _shown(after), rotated)


def log_markers(log: logging.Logger, sent: SendMarkers, codes: dict[str, int]) -> None:
    """Log the answers to end markers: the code of each partition, 0 for written."""
    log.debug(
        "%s: %s markers of %d:%d, coordinator epoch %d: %s",
        sent.transactional_id,
        "commit" if sent.commit else "abort",
        sent.producer_id,
        sent.producer_epoch,
        sent.coordinator_epoch,
        codes,
    )


def _name(plan: Plan, before: TransactionMetadata, after: TransactionMetadata | None) -> tuple[int, str] | None:
    if after is None:
        return logging.DEBUG, "removed, as it was not used for too long"
    if after.state is TransactionState.EMPTY:
        return logging.INFO, "InitProducerId"
    if after.kept:
        return logging.INFO, "InitProducerId kept the prepared transaction"
    if after.state in DECIDED:
        return _decision(plan, after)
    return (logging.DEBUG, "completed") if before.state in COMPLETION else None


def _decision(plan: Plan, after: TransactionMetadata) -> tuple[int, str]:
    if plan.reply is None:
        return logging.INFO, "timed out"
    if isinstance(plan.reply, InitProducerIdReply):
        return logging.INFO, "aborted by InitProducerId, its producer is fenced"
    return logging.DEBUG, "commit decided" if after.state is TransactionState.PREPARE_COMMIT else "abort decided"


def _shown(metadata: TransactionMetadata) -> str:
    """State and pair; of a kept transaction also the pair that its client holds."""
    pair, client = metadata.pair, metadata.client_pair
    held = f" (client {client.producer_id}:{client.epoch})" if client != pair else ""
    return f"{metadata.state.label} {pair.producer_id}:{pair.epoch}{held}"
