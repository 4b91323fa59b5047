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
    ├── SupersededError           a newer driver has claimed the row, or it is gone
    └── CommitsLostError          the row is older than what its claim has written

A writer derives its own errors from `DualWriteError`: one ``except`` then catches everything that either raises on
purpose. Errors carry fields and build their message from them. All of them can be pickled. Only the standard library is
imported here, so that a program without a database can use the root error.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import partial
from typing import Any


@dataclass(eq=False, kw_only=True)
class DualWriteError(Exception):
    """Root of the tree. Never raised itself."""

    def __post_init__(self) -> None:
        super().__init__(*(getattr(self, each.name) for each in fields(self)))

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), **{each.name: getattr(self, each.name) for each in fields(self)}), ()


def with_remedies(text: str, remedies: tuple[str, ...]) -> str:
    steps = "".join(f"\n  {remedy}" for remedy in remedies)
    return f"{text}\nWhat to do:{steps}" if steps else text


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
        return with_remedies(f"{self.operation}: {self.detail}", self.remedies)


class DatabaseUnreachableError(StateStoreError):
    """No connection to the database could be made."""


class DatabaseRefusedError(DatabaseUnreachableError):
    """The server refused the login: password, role, database, its CONNECT privilege, or pg_hba.conf."""


class CommitUnknownError(StateStoreError):
    """COMMIT raised, or its answer was lost. For any SQLSTATE, only a new claim can tell what it did."""


@dataclass(eq=False, kw_only=True)
class ClaimRefusedError(DualWriteError):
    """The state row of this transactional id has another owner. Nothing was changed.

    ``what`` is the kind of owner, "query" or "Kafka cluster". ``decided`` means that the row has a decision that its
    cluster has not settled, and that adopting it would forget. ``remedies`` are commands and sentences of the writer.
    """

    transactional_id: str
    what: str
    expected: str
    found: str
    decided: bool = False
    remedies: tuple[str, ...] = ()

    def __str__(self) -> str:
        unsettled = ", where a decided batch is not settled" if self.decided else ""
        owner = f"transactional id {self.transactional_id!r} belongs to {self.what} {self.found!r}{unsettled}"
        return with_remedies(f"{owner}, not to {self.expected!r}; nothing was changed.", self.remedies)


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
                f"{held}, and the row is gone from the state table: the row was deleted, or the table was created "
                "again. This driver stops. Restore the row from a backup: without it the next start cannot tell "
                "which batch both sides have, and needs a decision"
            )
        return f"{held}, but the state row now has {self.found}: a newer driver has taken over, and this one stops"


@dataclass(eq=False, kw_only=True)
class CommitsLostError(DualWriteError):
    """The state row is older than what this claim has read or written: the database has lost commits.

    ``left`` is how the claim left the row, ``found`` how it is now.
    """

    transactional_id: str
    left: str
    found: str

    @property
    def reason(self) -> str:
        return f"this claim left the state row at {self.left}, and the row is now different"

    def __str__(self) -> str:
        return (
            f"transactional id {self.transactional_id!r}: {self.reason} ({self.found}): the database has lost commits "
            "(a failover to a standby that lacked them, or a restored backup)"
        )
