"""The options of a service's dual writes, in addition to those that they share with a sink."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from spark_2pc_sink.ids import TRANSACTIONAL_ID_CHARACTERS_MAX
from spark_2pc_sink.options.common import CommonOptions, contradiction
from spark_2pc_sink.options.names import IDENTIFIER_BYTES_MAX
from spark_2pc_sink.options.settings import milliseconds, setting

#: Suffix of the state table's name for the table of kept records.
RECORDS_SUFFIX = "_records"


@dataclass(frozen=True, kw_only=True)
class ServiceOptions(CommonOptions):
    """Everything that ``DualWrite(...)`` takes in addition to :class:`CommonOptions`.

    Raises:
        ConfigurationError: a value is out of bounds, or two of them contradict each other.
    """

    transactional_id: str = setting(
        why="the name of the service, the same after a restart and in all its processes. Its transactional ids are "
        "this name with -0, -1, … behind it"
    )
    ids: int = setting(
        8,
        at_least=1,
        at_most=1_024,
        why="transactional ids that one process holds: so many transactions commit at the same time, from their first "
        "record to EndTxn. Have twice as many: before an id is used again its end markers are written. Each has a "
        "connection of its own to each broker, as a broker answers the requests of one connection one after the other",
    )
    ids_max: int = setting(
        64,
        at_least=1,
        at_most=1_024,
        why="transactional ids, and so state rows, of all processes of the service together. A process takes those "
        "that no other holds, and settles those that a dead one has left",
    )
    wait_for_id_ms: int = milliseconds(
        10_000,
        at_least=0,
        why="the longest wait for a transactional id that no other transaction is using. The transaction is then "
        "rolled back, and nothing was written",
    )
    kafka_commit: Literal["before_return", "in_background"] = setting(
        "before_return",
        why="'before_return': the call returns when both sides have the transaction. 'in_background': it returns after "
        "the database's COMMIT, which is the decision; readers of the topic see the records a moment later",
    )
    takeover_grace_s: int = setting(
        60,
        unit="s",
        at_least=0,
        at_most=86_400,
        why="where database sessions do not tell whether another process lives (behind a pooler in transaction mode), "
        "an id is taken over when its state row was not touched for so long",
    )
    history_batches: int = setting(
        0,
        at_least=0,
        at_most=1_000_000,
        why="lines of the history that are kept for each transactional id, as for a sink. A line costs as much as the "
        "decision, and a thousand of them are seconds of a busy service: none by default",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ids > self.ids_max:
            raise contradiction("ids", self.ids, f"it is not above ids_max={self.ids_max}", "raise ids_max")
        longest = self.id_of(self.ids_max - 1)
        if len(longest) > TRANSACTIONAL_ID_CHARACTERS_MAX:
            rule = f"with a number behind it, it has at most {TRANSACTIONAL_ID_CHARACTERS_MAX} characters"
            raise contradiction("transactional_id", self.transactional_id, rule, "shorten it")
        if len((self.state_table + RECORDS_SUFFIX).encode()) > IDENTIFIER_BYTES_MAX:
            rule = f"with {RECORDS_SUFFIX} behind it, it has at most {IDENTIFIER_BYTES_MAX} bytes"
            raise contradiction("state_table", self.state_table, rule, "shorten it")

    def id_of(self, number: int) -> str:
        """One of the transactional ids."""
        return f"{self.transactional_id}-{number}"

    @property
    def owner(self) -> str:
        """Owner in a service's state rows in place of a query id, so that no query takes them for its own."""
        return f"service {self.transactional_id}"

    def store_settings(self) -> dict[str, Any]:
        """Keywords of ``jdbc_state.StoreSettings``; the records are kept."""
        return super().store_settings() | {"keep_records": True}
