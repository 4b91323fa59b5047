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

_CODES: dict[int, Code] = {Code.PRODUCER_FENCED: Code.INVALID_PRODUCER_EPOCH}
_OLD_CODES: dict[int, Code] = {**_CODES, Code.TRANSACTION_ABORTABLE: Code.INVALID_TXN_STATE}
#: What every old producer retries, if the coordinator's log or the previous transaction is in the way.
_WAIT = Code.NOT_ENOUGH_REPLICAS
_PRODUCE_CODES: dict[int, Code] = {**_CODES, Code.NOT_COORDINATOR: _WAIT}
_PRODUCE_VERIFY_CODES: dict[int, Code] = {**_PRODUCE_CODES, Code.CONCURRENT_TRANSACTIONS: _WAIT}
_PRODUCE_OLD_CODES: dict[int, Code] = {**_OLD_CODES, **_PRODUCE_VERIFY_CODES}

#: What a coordinator answers when the append to its log failed
#: (TransactionStateManager.appendTransactionToLog: a client should look for the coordinator again, or retry).
_APPEND_ERRORS: dict[int, Code] = {
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
    """The code for the client of TxnOffsetCommit, given the coordinator's or the append's."""
    return (_CODES if version >= _OFFSETS_ABORTABLE_VERSION else _OLD_CODES).get(code, code)


def append_error(code: int) -> int:
    """The client's code for an append that failed with ``code``; an unlisted code is returned unchanged."""
    return _APPEND_ERRORS.get(code, code)
