"""Errors of the state store, and the root of the errors of writers that use it.

::

    DualWriteError
    ├── ConfigurationError        an option, refused before anything was written
    ├── LocalProtocolError        the caller broke the order of calls
    ├── StateStoreError           the database of the state row
    │   ├── DatabaseUnreachableError
    │   │   └── DatabaseRefusedError
    │   └── CommitUnknownError    COMMIT raised: only a new claim can tell what it did
    ├── ClaimRefusedError         the state row belongs to another query or another Kafka cluster
    ├── SupersededError           a newer driver has claimed the sink, or its state row is gone
    └── HaltError                 two sides disagree, and a person has to decide (`HaltCause`)

A writer derives its own errors from `DualWriteError`, as `spark_2pc_sink` does: one ``except`` then catches everything
that either raises on purpose. Errors carry fields and build their message from them. All of them can be pickled.
Only the standard library is imported here, so that a program without a database can use the root error.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any


@dataclass(eq=False, kw_only=True)
class DualWriteError(Exception):
    """Root of the tree. Never raised itself."""

    def __post_init__(self) -> None:
        super().__init__(*(getattr(self, each.name) for each in fields(self)))

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), {each.name: getattr(self, each.name) for each in fields(self)})


def _rebuild(cls: type[DualWriteError], values: dict[str, Any]) -> DualWriteError:
    return cls(**values)


@dataclass(eq=False, kw_only=True)
class ConfigurationError(DualWriteError):
    """An option has a value that breaks a rule. Nothing was written.

    ``source`` is the file or the variable with the value; '' if the caller passed it.
    """

    option: str
    value: object
    rule: str
    remedy: str
    source: str = ""

    def __str__(self) -> str:
        source = f"{self.source}: " if self.source else ""
        return f"{source}{self.option}={self.value!r}: {self.rule}; {self.remedy}"


@dataclass(eq=False, kw_only=True)
class LocalProtocolError(DualWriteError):
    """The caller called an operation in a state that does not allow it. Nothing happened."""

    operation: str
    state: str
    rule: str

    def __str__(self) -> str:
        return f"{self.operation} in state {self.state}: {self.rule}"


@dataclass(eq=False, kw_only=True)
class StateStoreError(DualWriteError):
    """The database refused or failed an operation of the state store or of the target table.

    ``sqlstate`` is PostgreSQL's code ('' if the server did not answer). ``retriable`` is true if the same batch may
    succeed when it is run again: a deadlock, a serialization failure, an unavailable lock or resource, a broken
    connection (SQLSTATE 40001, 40P01, 55P03, 53xxx, 57Pxx, 08xxx). ``remedies`` are commands and sentences for people,
    if there are any.
    """

    operation: str
    detail: str
    sqlstate: str = ""
    retriable: bool = False
    remedies: tuple[str, ...] = ()

    def __str__(self) -> str:
        steps = "".join(f"\n  {remedy}" for remedy in self.remedies)
        return f"{self.operation}: {self.detail}" + (f"\nWhat settles it:{steps}" if steps else "")


@dataclass(eq=False, kw_only=True)
class DatabaseUnreachableError(StateStoreError):
    """No connection to the database could be made."""


@dataclass(eq=False, kw_only=True)
class DatabaseRefusedError(DatabaseUnreachableError):
    """The server refused the login: password, role, database, its CONNECT privilege, or pg_hba.conf."""


@dataclass(eq=False, kw_only=True)
class CommitUnknownError(StateStoreError):
    """COMMIT raised, or its answer was lost. For any SQLSTATE, only a new claim can tell what it did."""


@dataclass(eq=False, kw_only=True)
class ClaimRefusedError(DualWriteError):
    """The state row of this transactional id has another owner. Nothing was changed."""

    transactional_id: str
    what: str
    expected: str
    found: str
    remedies: tuple[str, ...]

    def __str__(self) -> str:
        steps = "".join(f"\n  {remedy}" for remedy in self.remedies)
        return (
            f"transactional id {self.transactional_id!r} belongs to {self.what} {self.found!r}, not to "
            f"{self.expected!r}; nothing was changed.\nWhat settles it:{steps}"
        )


@dataclass(eq=False, kw_only=True)
class SupersededError(DualWriteError):
    """This driver's claim on the state row has been replaced. It must stop; it has changed nothing since.

    ``found`` is the row's current claim, None if there is no row.
    """

    transactional_id: str
    generation: int
    found: str | None

    def __str__(self) -> str:
        held = f"this driver holds generation {self.generation} of transactional id {self.transactional_id!r}"
        if self.found is None:
            return (
                f"{held}, and the state table has no row of it any more: somebody deleted the row, or the table was "
                "made anew. This driver stops. Restore the row from a backup: without it the next start cannot tell "
                "which batch both sides have, and asks for a decision"
            )
        return f"{held}, the state row now says {self.found}: a newer driver has taken over, and this one stops"


class HaltCause(str, Enum):
    """Why a person has to decide, for programs; equal to the text in the command line's JSON."""

    #: The state row belongs to another Kafka cluster.
    OTHER_CLUSTER = "other_cluster"
    #: The state row is new, and Kafka has transactions with its id.
    ID_IN_USE = "id_in_use"
    #: The state row and its history are lost, and Kafka has an open transaction with its id.
    OPEN_TRANSACTION = "open_transaction"
    #: Kafka has committed a transaction that the state row lacks.
    DATABASE_BEHIND = "database_behind"
    #: The state row differs from what this claim has written: the database lost commits.
    COMMITS_LOST = "commits_lost"
    #: The batch is decided, and neither the coordinator nor a log tells how its transaction ended.
    OUTCOME_LOST = "outcome_lost"
    #: Kafka has lost records of a decided batch: a topic was deleted or re-created, or a log lost them.
    TOPIC_REMADE = "topic_remade"
    #: The state row has no batch, and the batch received is not the first.
    NOT_THE_FIRST_BATCH = "not_the_first_batch"
    #: The batch received is neither that of the state row nor the one after it.
    GAP = "gap"
    #: Batch 0 was received, and the state row has later batches of the query: a full refresh, or an emptied checkpoint.
    BATCHES_RESTARTED = "batches_restarted"
    #: Kafka lacks another batch than the one received.
    OTHER_BATCH_OWED = "other_batch_owed"
    #: Kafka lacks this batch, and the rows received under its id are not those in the database.
    RESEND_DIFFERS = "resend_differs"
    #: Both sides have a batch with this id, with rows other than those received.
    REPLAY_DIFFERS = "replay_differs"
    #: The job's function skipped a batch before the one received, and the skipped batch may have had rows.
    NOT_HANDED_OVER = "not_handed_over"


@dataclass(eq=False, kw_only=True)
class HaltError(DualWriteError):
    """The two sides differ, and there is no safe automatic answer. Kafka was left unchanged.

    ``cause`` is for programs, ``reason`` and ``remedies`` are for people. ``report`` is the writer's recovery report on
    the sink; None until its recovery has seen the halt.
    """

    transactional_id: str
    cause: HaltCause
    database_side: str
    kafka_side: str
    reason: str
    remedies: tuple[str, ...]
    report: Any = field(default=None, repr=False)

    def __str__(self) -> str:
        steps = "".join(f"\n  {remedy}" for remedy in self.remedies)
        return (
            f"transactional id {self.transactional_id!r} needs a decision: {self.reason}.\n"
            f"  database: {self.database_side}\n  Kafka:    {self.kafka_side}\nWhat settles it:{steps}"
        )
