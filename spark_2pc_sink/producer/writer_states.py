"""The states of a transactional writer and what may be called in each, as data.

Java's ``KafkaProducer`` keeps the same rules in ``TransactionManager.State`` and in the methods that throw
``IllegalStateException``; KIP-98 and KIP-939 state them in prose. Here every allowed call is one row, with the sentence
that allows it. A call without a row is refused before anything happens: no byte is sent and no state changes.

Three outcomes lead out of a call. *done* is where it leads when it succeeds. *failed* is where it leads when the
transaction is lost but the producer is not (TransactionAbortableException of KIP-890, and every failed send).
*unknown* is where EndTxn leads when no answer came: it may be repeated, and only it (javadoc of
``commitTransaction``: after a time-out "it is safe to retry", and aborting is not possible). A producer that was fenced
or refused is FATAL from any state.

``complete_transaction`` becomes a commit or an abort, and then follows the row of that operation as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from spark_2pc_sink.errors import LocalProtocolError


class WriterState(Enum):
    """Where a writer stands."""

    UNINITIALISED = "uninitialised"
    READY = "ready"
    IN_TRANSACTION = "in transaction"
    PREPARED = "prepared"
    KEPT = "kept"
    KEPT_NOTHING = "kept, with nothing ongoing"
    MUST_ABORT = "must abort"
    COMMITTING = "committing"
    ABORTING = "aborting"
    FATAL = "fatal"
    CLOSED = "closed"


class Operation(Enum):
    """The operations of a writer."""

    INIT = "init_transactions"
    INIT_KEEPING = "init_transactions(keep_prepared_txn=True)"
    BEGIN = "begin_transaction"
    APPEND = "append"
    FLUSH = "flush"
    PREPARE = "prepare_transaction"
    COMPLETE = "complete_transaction"
    COMMIT = "commit_transaction"
    ABORT = "abort_transaction"
    CLOSE = "close"


@dataclass(frozen=True)
class Rule:
    """One allowed call.

    Args:
        state: in which it is allowed.
        operation: the call.
        done: the state after success.
        failed: the state after an error that loses the transaction and not the producer.
        unknown: the state when the outcome of EndTxn is unknown.
        source: the sentence that allows it.
    """

    state: WriterState
    operation: Operation
    done: WriterState
    failed: WriterState
    unknown: WriterState
    source: str


_S, _O = WriterState, Operation
_INIT = "KIP-98, initTransactions: 'Needs to be called before any other methods when the transactional.id is set'"
_KEEP = (
    "KIP-939, initTransactions(true): 'the KafkaProducer object is set into a state which only allows calling "
    ".commitTransaction, .abortTransaction, or .completeTransaction'"
)
_NOTHING = "KIP-939, 'Transaction Coordinator Changes': with no ongoing transaction InitProducerId works as before"
_BEGIN = "KIP-98, beginTransaction: 'Should be called before the start of each new transaction'"
_SEND = "KIP-98, 'Data Flow': records are sent between beginTransaction and the end of the transaction"
_PREPARE = (
    "KIP-939, prepareTransaction: 'flush all the pending messages and transition the producer into a mode where only "
    ".commitTransaction, .abortTransaction, or .completeTransaction could be called'"
)
_COMPLETE = (
    "KIP-939, completeTransaction: 'compare the currently prepared transaction state and the state passed in the "
    "argument and either commit or abort the transaction'"
)
_COMMIT = "KIP-98, commitTransaction: 'Commits the ongoing transaction'"
_ABORT = "KIP-98, abortTransaction: 'Aborts the ongoing transaction'"
_ABORTABLE = "KIP-890 / KIP-1050: after an abortable error the application aborts the transaction and goes on"
_REPEAT = "KafkaProducer javadoc: after a TimeoutException 'it is safe to retry', and nothing else is"
_CLOSE = "KafkaProducer.close: allowed at any time; it ends no transaction"

#: Every allowed call. What is not here is refused.
RULES: Final[tuple[Rule, ...]] = (
    Rule(_S.UNINITIALISED, _O.INIT, _S.READY, _S.UNINITIALISED, _S.UNINITIALISED, _INIT),
    Rule(_S.UNINITIALISED, _O.INIT_KEEPING, _S.KEPT, _S.UNINITIALISED, _S.UNINITIALISED, _KEEP),
    Rule(_S.READY, _O.BEGIN, _S.IN_TRANSACTION, _S.READY, _S.READY, _BEGIN),
    Rule(_S.IN_TRANSACTION, _O.APPEND, _S.IN_TRANSACTION, _S.MUST_ABORT, _S.MUST_ABORT, _SEND),
    Rule(_S.IN_TRANSACTION, _O.FLUSH, _S.IN_TRANSACTION, _S.MUST_ABORT, _S.MUST_ABORT, _SEND),
    Rule(_S.IN_TRANSACTION, _O.PREPARE, _S.PREPARED, _S.MUST_ABORT, _S.MUST_ABORT, _PREPARE),
    Rule(_S.IN_TRANSACTION, _O.COMMIT, _S.READY, _S.MUST_ABORT, _S.COMMITTING, _COMMIT),
    Rule(_S.IN_TRANSACTION, _O.ABORT, _S.READY, _S.MUST_ABORT, _S.ABORTING, _ABORT),
    Rule(_S.PREPARED, _O.COMPLETE, _S.READY, _S.MUST_ABORT, _S.COMMITTING, _COMPLETE),
    Rule(_S.PREPARED, _O.COMMIT, _S.READY, _S.MUST_ABORT, _S.COMMITTING, _PREPARE),
    Rule(_S.PREPARED, _O.ABORT, _S.READY, _S.MUST_ABORT, _S.ABORTING, _PREPARE),
    Rule(_S.KEPT, _O.COMPLETE, _S.READY, _S.MUST_ABORT, _S.COMMITTING, _COMPLETE),
    Rule(_S.KEPT, _O.COMMIT, _S.READY, _S.MUST_ABORT, _S.COMMITTING, _KEEP),
    Rule(_S.KEPT, _O.ABORT, _S.READY, _S.MUST_ABORT, _S.ABORTING, _KEEP),
    Rule(_S.KEPT_NOTHING, _O.COMPLETE, _S.READY, _S.KEPT_NOTHING, _S.KEPT_NOTHING, _NOTHING),
    Rule(_S.KEPT_NOTHING, _O.BEGIN, _S.IN_TRANSACTION, _S.KEPT_NOTHING, _S.KEPT_NOTHING, _NOTHING),
    Rule(_S.MUST_ABORT, _O.ABORT, _S.READY, _S.MUST_ABORT, _S.ABORTING, _ABORTABLE),
    Rule(_S.COMMITTING, _O.COMMIT, _S.READY, _S.MUST_ABORT, _S.COMMITTING, _REPEAT),
    Rule(_S.COMMITTING, _O.COMPLETE, _S.READY, _S.MUST_ABORT, _S.COMMITTING, _REPEAT),
    Rule(_S.ABORTING, _O.ABORT, _S.READY, _S.MUST_ABORT, _S.ABORTING, _REPEAT),
    Rule(_S.ABORTING, _O.COMPLETE, _S.READY, _S.MUST_ABORT, _S.ABORTING, _REPEAT),
    *(Rule(state, _O.CLOSE, _S.CLOSED, _S.CLOSED, _S.CLOSED, _CLOSE) for state in WriterState),
)

_TABLE: Final = {(rule.state, rule.operation): rule for rule in RULES}


def rule_for(state: WriterState, operation: Operation) -> Rule:
    """The rule that allows ``operation`` in ``state``.

    Raises:
        LocalProtocolError: there is none. Nothing has happened.
    """
    rule = _TABLE.get((state, operation))
    if rule is None:
        allowed = [known.operation.value for known in RULES if known.state is state]
        raise LocalProtocolError(
            operation=operation.value, state=state.value, rule=f"only {', '.join(allowed)} can be called now"
        )
    return rule
