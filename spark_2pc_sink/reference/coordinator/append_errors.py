"""What becomes of the error code of an append to the log on its way to a client."""

from __future__ import annotations

from spark_2pc_sink.codes import Code

#: What the coordinator APIs answer when the append to ``__transaction_state`` failed
#: (TransactionStateManager.appendTransactionToLog: a client should look for the coordinator again, or retry).
APPEND_ERRORS: dict[int, Code] = {
    Code.UNKNOWN_TOPIC_OR_PARTITION: Code.COORDINATOR_NOT_AVAILABLE,
    Code.NOT_ENOUGH_REPLICAS: Code.COORDINATOR_NOT_AVAILABLE,
    Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND: Code.COORDINATOR_NOT_AVAILABLE,
    Code.REQUEST_TIMED_OUT: Code.COORDINATOR_NOT_AVAILABLE,
    Code.NOT_LEADER_OR_FOLLOWER: Code.NOT_COORDINATOR,
    Code.KAFKA_STORAGE_ERROR: Code.NOT_COORDINATOR,
    Code.MESSAGE_TOO_LARGE: Code.UNKNOWN_SERVER_ERROR,
    Code.RECORD_LIST_TOO_LARGE: Code.UNKNOWN_SERVER_ERROR,
}


def append_error(code: int) -> int:
    """The answer to a client whose record could not be appended with ``code``; an unlisted code stays itself."""
    return APPEND_ERRORS.get(code, code)
