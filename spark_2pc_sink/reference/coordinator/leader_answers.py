"""Translation of error codes that a partition leader or coordinator returns to a client.

Before the first record of a transaction reaches a partition, its leader asks the coordinator: new clients have the
partition added, older ones have it verified (KIP-890, 2 and 3). The codes are translated, because old clients take
some of them as fatal (KIP-890, Old Clients).
"""

from __future__ import annotations

from spark_2pc_sink.codes import Code

# First versions of Produce and TxnOffsetCommit whose client ...
PRODUCE_ADD_VERSION = 12  # relies on the implicit add, and bumps its epoch with every transaction
OFFSETS_ADD_VERSION = 5  # relies on the implicit add; an older client's partition is verified
_PRODUCE_ABORTABLE_VERSION = 11  # knows TRANSACTION_ABORTABLE
_OFFSETS_ABORTABLE_VERSION = 4  # knows TRANSACTION_ABORTABLE
_OFFSETS_LOADING_VERSION = 2  # may be answered COORDINATOR_LOAD_IN_PROGRESS

#: The coordinator is unavailable or moving: a code that every old client retries.
_ABSENT = (
    Code.COORDINATOR_LOAD_IN_PROGRESS,
    Code.COORDINATOR_NOT_AVAILABLE,
    Code.NOT_COORDINATOR,
    Code.NETWORK_EXCEPTION,
)

_PRODUCE_CODES: dict[int, Code] = {
    Code.PRODUCER_FENCED: Code.INVALID_PRODUCER_EPOCH,
    **dict.fromkeys(_ABSENT, Code.NOT_ENOUGH_REPLICAS),
}
_PRODUCE_VERIFY_CODES: dict[int, Code] = {**_PRODUCE_CODES, Code.CONCURRENT_TRANSACTIONS: Code.NOT_ENOUGH_REPLICAS}
_PRODUCE_OLD_CODES: dict[int, Code] = {**_PRODUCE_VERIFY_CODES, Code.TRANSACTION_ABORTABLE: Code.INVALID_TXN_STATE}

_OFFSETS_CODES: dict[int, Code] = {
    Code.PRODUCER_FENCED: Code.INVALID_PRODUCER_EPOCH,
    Code.NETWORK_EXCEPTION: Code.COORDINATOR_LOAD_IN_PROGRESS,
    Code.UNKNOWN_TOPIC_OR_PARTITION: Code.COORDINATOR_NOT_AVAILABLE,
    Code.NOT_ENOUGH_REPLICAS: Code.COORDINATOR_NOT_AVAILABLE,
    Code.REQUEST_TIMED_OUT: Code.COORDINATOR_NOT_AVAILABLE,
    Code.NOT_LEADER_OR_FOLLOWER: Code.NOT_COORDINATOR,
}
_OFFSETS_OLD_CODES: dict[int, Code] = {**_OFFSETS_CODES, Code.TRANSACTION_ABORTABLE: Code.INVALID_TXN_STATE}

#: What the coordinator APIs answer when the append to ``__transaction_state`` failed
#: (TransactionStateManager.appendTransactionToLog: a client should look for the coordinator again, or retry).
_APPEND_ERRORS: dict[int, Code] = {
    Code.UNKNOWN_TOPIC_OR_PARTITION: Code.COORDINATOR_NOT_AVAILABLE,
    Code.NOT_ENOUGH_REPLICAS: Code.COORDINATOR_NOT_AVAILABLE,
    Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND: Code.COORDINATOR_NOT_AVAILABLE,
    Code.REQUEST_TIMED_OUT: Code.COORDINATOR_NOT_AVAILABLE,
    Code.NOT_LEADER_OR_FOLLOWER: Code.NOT_COORDINATOR,
    Code.KAFKA_STORAGE_ERROR: Code.NOT_COORDINATOR,
    Code.MESSAGE_TOO_LARGE: Code.UNKNOWN_SERVER_ERROR,
    Code.RECORD_LIST_TOO_LARGE: Code.UNKNOWN_SERVER_ERROR,
}


def produce_code(version: int, code: int) -> int:
    """The code for the producer, given the coordinator's; CONCURRENT_TRANSACTIONS only after the leader's retries."""
    if version >= PRODUCE_ADD_VERSION:
        return _PRODUCE_CODES.get(code, code)
    codes = _PRODUCE_VERIFY_CODES if version >= _PRODUCE_ABORTABLE_VERSION else _PRODUCE_OLD_CODES
    return codes.get(code, code)


def produce_message(client_code: int, code: int) -> str | None:
    """The error message returned with the code ``client_code``, given the coordinator's code (``ReplicaManager``)."""
    if client_code == Code.INVALID_TXN_STATE:
        return "Partition was not added to the transaction"
    if client_code == Code.NOT_ENOUGH_REPLICAS:
        underlying = Code(code).name
        return f"Unable to verify the partition has been added to the transaction. Underlying error: {underlying}"
    return None


def offsets_code(version: int, code: int) -> int:
    """The code for the client of TxnOffsetCommit, given the coordinator's or the append's.

    Versions 0 and 1 lack COORDINATOR_LOAD_IN_PROGRESS and get COORDINATOR_NOT_AVAILABLE.
    """
    codes = _OFFSETS_CODES if version >= _OFFSETS_ABORTABLE_VERSION else _OFFSETS_OLD_CODES
    translated = codes.get(code, code)
    loading = translated == Code.COORDINATOR_LOAD_IN_PROGRESS
    return Code.COORDINATOR_NOT_AVAILABLE if loading and version < _OFFSETS_LOADING_VERSION else translated


def append_error(code: int) -> int:
    """The client's code for an append that failed with ``code``; an unlisted code is returned unchanged."""
    return _APPEND_ERRORS.get(code, code)
