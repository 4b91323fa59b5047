"""Every error that this package raises on purpose.

::

    DualWriteError
    ├── ConfigurationError        an option, refused before anything was written
    ├── DataError                 a row, refused; running the batch again would refuse it again
    │   ├── UnstorableValueError  a value that PostgreSQL or Kafka cannot hold
    │   ├── ConstraintError       a row that a constraint, a type or a trigger of the table refused
    │   ├── DuplicateKeyError     upsert met one key twice in a batch
    │   ├── RecordTooLargeError   a record that exceeds the topic's limit
    │   ├── RecordRefusedError    a record that the topic refuses, such as one without a key
    │   └── TooManyBadRowsError   more bad rows than max_bad_rows lets into the dead letters
    ├── LocalProtocolError        the caller broke the order of calls
    ├── RemoteProtocolError       a peer broke its protocol
    ├── KafkaError                a broker's answer, with its code
    │   ├── FencedError           another producer owns the transactional id now
    │   ├── AbortableError        this transaction must be aborted; the next one may succeed
    │   ├── AuthorizationError    an ACL is missing, or the credentials were refused
    │   │   └── TlsRefusedError   a certificate was refused, or one side does not use TLS
    │   └── UnknownTopicError     the topic or partition does not exist
    ├── KafkaTimeoutError         no answer within the deadline
    │   └── OutcomeUnknownError   … to a request that may have been carried out (EndTxn)
    ├── SchemaRegistryError       the schema registry did not answer as it should
    ├── StateStoreError           the database of the state row
    │   ├── DatabaseUnreachableError
    │   │   └── DatabaseRefusedError     the server refused the login: password, role, database, pg_hba.conf
    │   └── CommitUnknownError    COMMIT raised: only a new claim can tell what it did
    ├── ClaimRefusedError         the state row belongs to another query or another Kafka cluster
    ├── BatchRetryError           this attempt of the batch must be thrown away and run again
    ├── BatchAttemptsExhaustedError
    ├── TransactionExpiredError   Kafka would abort the transaction before it could be committed
    ├── SupersededError           a newer driver has claimed the sink, or its state row is gone
    ├── TakeOverRefusedError      a driver of the sink is alive, or may be, and taking over was not requested
    ├── AbortRefusedError         an open transaction that must not be aborted without its coordinator
    ├── HaltError                 two sides disagree, and a person has to decide (`HaltCause`)
    └── InDoubtError              decided in the database, and not completed in Kafka in time

Errors carry fields and build their message from them. All of them can be pickled: Spark sends them from its Python
workers to the driver. The root, and the errors that the state store raises too, are defined in `jdbc_state.errors`, and
shown under the name of this module.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from jdbc_state.errors import (
    ClaimRefusedError,
    CommitUnknownError,
    ConfigurationError,
    DatabaseRefusedError,
    DatabaseUnreachableError,
    DualWriteError,
    LocalProtocolError,
    StateStoreError,
    SupersededError,
    with_remedies,
)

if TYPE_CHECKING:
    from spark_2pc_sink.choices import HaltCause, HaltError, InDoubtError

__all__ = [
    "AbortRefusedError",
    "AbortableError",
    "AuthorizationError",
    "BatchAttemptsExhaustedError",
    "BatchRetryError",
    "ClaimRefusedError",
    "CommitUnknownError",
    "ConfigurationError",
    "ConstraintError",
    "DataError",
    "DatabaseRefusedError",
    "DatabaseUnreachableError",
    "DualWriteError",
    "DuplicateKeyError",
    "FencedError",
    "HaltCause",
    "HaltError",
    "InDoubtError",
    "KafkaError",
    "KafkaTimeoutError",
    "LocalProtocolError",
    "OutcomeUnknownError",
    "RecordRefusedError",
    "RecordTooLargeError",
    "RemoteProtocolError",
    "SchemaRegistryError",
    "StateStoreError",
    "SupersededError",
    "TakeOverRefusedError",
    "TlsRefusedError",
    "TooManyBadRowsError",
    "TransactionExpiredError",
    "UnknownTopicError",
    "UnstorableValueError",
]

#: Loaded on demand: the tasks of a batch do without the table of choices.
_OF_CHOICES = frozenset({"HaltCause", "HaltError", "InDoubtError"})

# Those of `jdbc_state` under their public names: Spark shows an error with its module, where users would search for it.
for _name in globals().keys() & set(__all__):
    globals()[_name].__module__ = __name__

if not TYPE_CHECKING:  # type checkers would otherwise accept every name

    def __getattr__(name: str) -> object:
        if name not in _OF_CHOICES:
            message = f"module {__name__!r} has no attribute {name!r}"
            raise AttributeError(message)
        return getattr(import_module("spark_2pc_sink.choices"), name)


class DataError(DualWriteError):
    """A row that the sink refuses. The batch was aborted on both sides; a retry would refuse it again."""


@dataclass(eq=False, kw_only=True)
class UnstorableValueError(DataError):
    """A value that the target cannot hold: NUL in text, a number out of range, a text longer than its column."""

    column: str
    row_key: str
    value: str
    rule: str
    remedy: str = "Filter or convert the value before the sink"

    def __str__(self) -> str:
        return (
            f"column {self.column!r} of the row with {self.row_key}: {self.value} cannot be stored: {self.rule}; "
            f"nothing of the batch was written. {self.remedy}"
        )


@dataclass(eq=False, kw_only=True)
class ConstraintError(DataError):
    """PostgreSQL refused a row: a unique key, a check, a foreign key, a value's form, or a trigger."""

    table: str
    constraint: str
    column: str
    sqlstate: str
    detail: str

    def __str__(self) -> str:
        where = f", column {self.column}" if self.column else ""
        what = f" (constraint {self.constraint})" if self.constraint else ""
        code = f" [{self.sqlstate}]" if self.sqlstate else ""
        return (
            f"table {self.table}{where} refused a row{what}: {self.detail}{code}; nothing of the batch was written. "
            "Correct or filter such rows before the sink, or change the table"
        )


@dataclass(eq=False, kw_only=True)
class DuplicateKeyError(DataError):
    """A batch contains a key of an upsert more than once, and no option tells which row is the last."""

    table: str
    key_columns: tuple[str, ...]
    keys: tuple[str, ...]
    tied: bool = False

    def __str__(self) -> str:
        how, remedy = "", "Set upsert_order_by to an expression that orders such rows (the greatest wins)"
        if self.tied:
            how = "with the same greatest value of upsert_order_by, "
            remedy = "Make upsert_order_by tell such rows apart"
        return (
            f"upsert into {self.table}: ({', '.join(self.key_columns)}) occurs more than once in the batch, {how}with "
            f"{'; '.join(self.keys)}; nothing of the batch was written. {remedy}, or deduplicate before the sink"
        )


@dataclass(eq=False, kw_only=True)
class RecordTooLargeError(DataError):
    """A record exceeds the largest batch that the topic accepts."""

    topic: str
    partition: int
    row_key: str
    record_bytes: int
    limit: str

    def __str__(self) -> str:
        return (
            f"the record with key {self.row_key} for {self.topic}-{self.partition} has {self.record_bytes} bytes, but "
            f"{self.limit}; nothing of the batch was written. Raise max.message.bytes of the topic (and "
            "max.request.size in kafka={...}), or make the value smaller"
        )


@dataclass(eq=False, kw_only=True)
class RecordRefusedError(DataError):
    """A topic refuses a record: one without a key in a compacted topic, or one that its broker rejects.

    ``contents`` are digests of the records that a broker has named; empty if none were sent.
    """

    topic: str
    partition: int
    record: str
    reason: str
    lacks_key: bool = False
    contents: frozenset[bytes] = frozenset()

    def __str__(self) -> str:
        remedy = "Set the option key to an expression that is never null, or filter" if self.lacks_key else "Filter"
        return (
            f"{self.topic}-{self.partition} refuses the record with {self.record}: {self.reason}; nothing of "
            f"the batch was written. {remedy} such rows before the sink, or send them to the dead letters (bad_rows)"
        )


@dataclass(eq=False, kw_only=True)
class TooManyBadRowsError(DataError):
    """A batch has more bad rows than the dead letters may take. ``first`` describes some of them."""

    found: int
    rows: int
    limit: str
    first: tuple[str, ...]

    def __str__(self) -> str:
        shown = "".join(f"\n  {row}" for row in self.first)
        return (
            f"at least {self.found} of the {self.rows} rows of the batch are bad, and max_bad_rows is {self.limit}; "
            "nothing of the batch was written. Correct the rows or the table, or raise max_bad_rows. "
            f"The first of them:{shown}"
        )


@dataclass(eq=False, kw_only=True)
class RemoteProtocolError(DualWriteError):
    """A peer sent an answer that its protocol does not allow."""

    peer: str
    detail: str

    def __str__(self) -> str:
        return f"{self.peer} broke the protocol: {self.detail}"


@dataclass(eq=False, kw_only=True)
class KafkaError(DualWriteError):
    """A broker returned an error code without an error class of its own."""

    api: str
    code: int
    name: str
    detail: str

    def __str__(self) -> str:
        return f"{self.detail} ({self.api} answered {self.name}, code {self.code})"


class FencedError(KafkaError):
    """The producer epoch in use is no longer the newest of its transactional id (codes 47, 49, 90)."""


class AbortableError(KafkaError):
    """The transaction cannot be committed any more, but the producer is healthy (codes 45, 48, 120 on Produce)."""


class AuthorizationError(KafkaError):
    """An ACL is missing (codes 29, 30, 31, 53), or the credentials were refused (58; of a token endpoint: HTTP's)."""


@dataclass(eq=False, kw_only=True)
class TlsRefusedError(AuthorizationError):
    """TLS with a broker cannot be negotiated; a retry would fail again.

    ``name`` is OpenSSL's name for it, ``code`` its X509_V_ERR code or 0.
    """

    remedy: str

    def __str__(self) -> str:
        return f"{self.detail}. Remedy: {self.remedy}"


class UnknownTopicError(KafkaError):
    """The topic does not exist, or has no such partition (code 3). This package never creates topics."""


@dataclass(eq=False, kw_only=True)
class KafkaTimeoutError(DualWriteError):
    """No usable answer within the deadline."""

    operation: str
    deadline_ms: int
    last_error: str
    remedy: str = ""

    def __str__(self) -> str:
        remedy = f". {self.remedy}" if self.remedy else ""
        return f"{self.operation} found no answer within {self.deadline_ms} ms: {self.last_error}{remedy}"


class OutcomeUnknownError(KafkaTimeoutError):
    """The request may or may not have been carried out. Only looking at the coordinator again can tell."""

    @classmethod
    def of(cls, error: KafkaTimeoutError, operation: str) -> OutcomeUnknownError:
        """The same time-out, for an operation that may have been carried out."""
        return cls(operation=operation, deadline_ms=error.deadline_ms, last_error=error.last_error)


@dataclass(eq=False, kw_only=True)
class SchemaRegistryError(DualWriteError):
    """The schema registry did not answer, or gave an invalid answer. Nothing was written."""

    url: str
    operation: str
    detail: str

    def __str__(self) -> str:
        return f"the schema registry at {self.url} failed at {self.operation}: {self.detail}; nothing was written"


@dataclass(eq=False, kw_only=True)
class BatchRetryError(DualWriteError):
    """This attempt of the batch cannot be finished; it is aborted and run again in a new transaction."""

    reason: str

    def __str__(self) -> str:
        return self.reason


@dataclass(eq=False, kw_only=True)
class BatchAttemptsExhaustedError(DualWriteError):
    """A batch has failed as often as allowed. Both sides are as they were before it."""

    batch_id: int
    attempts: int
    last_error: str

    def __str__(self) -> str:
        return (
            f"batch {self.batch_id} failed {self.attempts} times, each time aborted on both sides; the last error "
            f"was: {self.last_error}"
        )


@dataclass(eq=False, kw_only=True)
class TransactionExpiredError(DualWriteError):
    """A batch took longer than Kafka keeps a transaction without two-phase commit. It was aborted on both sides."""

    batch_id: int
    elapsed_ms: int
    timeout_ms: int
    margin_ms: int
    own_timeout: bool

    def __str__(self) -> str:
        limit, remedy = f"transaction.max.timeout.ms={self.timeout_ms} of the brokers", "raise it on the brokers"
        if self.own_timeout:
            limit = f"transaction.timeout.ms={self.timeout_ms} of kafka={{...}}"
            remedy = "raise it (to at most transaction.max.timeout.ms of the brokers, which is the default)"
        return (
            f"batch {self.batch_id} took {self.elapsed_ms} ms until its decision, and Kafka aborts its transaction "
            f"after {limit} (margin {self.margin_ms} ms); nothing was written. Make "
            f"batches smaller (maxOffsetsPerTrigger, maxFilesPerTrigger), {remedy}, or grant two-phase commit "
            "(transaction.two.phase.commit.enable and the ACL TWO_PHASE_COMMIT)"
        )


@dataclass(eq=False, kw_only=True)
class TakeOverRefusedError(DualWriteError):
    """Something is in doubt, and a driver of the sink is alive, or may be. Nothing was claimed or written.

    ``driver`` is its location, or why it is unknown. ``report`` is the `RecoveryReport` on what is in doubt.
    """

    transactional_id: str
    driver: str
    remedies: tuple[str, ...]
    report: Any = field(repr=False)

    def __str__(self) -> str:
        left = f"transactional id {self.transactional_id!r} was left alone: {self.driver}."
        return with_remedies(f"{left} Nothing was claimed or written.", self.remedies)


@dataclass(eq=False, kw_only=True)
class AbortRefusedError(DualWriteError):
    """An open transaction is not aborted by a marker, because its coordinator can still end it. Nothing was written.

    ``owner`` is the transactional id that has it, see `TransactionTool.describe`; None if it has just changed.
    """

    partition: str
    start_offset: int
    reason: str
    remedies: tuple[str, ...]
    owner: Any = field(default=None, repr=False)

    def __str__(self) -> str:
        begins = f"the transaction that begins at offset {self.start_offset} of {self.partition} was not aborted"
        return with_remedies(f"{begins}: {self.reason}.", self.remedies)
