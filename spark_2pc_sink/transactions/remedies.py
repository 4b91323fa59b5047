"""Remedies of open transactions: which command ends one, by whose it is. The safest comes first.

A transaction of a sink is ended by ``spark-2pc recover``, as the sink's database has decided; whatever else ends it may
leave Kafka without a batch that the database has. Whose it is a database tells, by the ids and the pairs in its state
table. Without one it is not known, and a transaction that never times out (two-phase commit, KIP-939) may be a sink's.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from spark_2pc_sink.ids import PreparedTxnState, TransactionState
from spark_2pc_sink.recipe.remedies import RECOVER, STATUS, remedy
from spark_2pc_sink.recovery.recover_command import NamedConnection
from spark_2pc_sink.transactions.queries import OpenTransaction, TransactionDetails

if TYPE_CHECKING:
    from jdbc_state import StateRow

_TOOL: Final = "spark-2pc transactions"
_AS_DECIDED: Final = "ends it as the sink's database has decided"
_BARE: Final = re.compile(r"^spark-2pc (?:recover|status|transactions [a-z-]+)")


@dataclass(frozen=True)
class KnownSinks:
    """The sinks of a database.

    Args:
        ids: their transactional ids.
        producers: the producer ids in their rows, each with the transactional id.
    """

    ids: frozenset[str]
    producers: Mapping[int, str]

    @classmethod
    def of(cls, rows: Iterable[StateRow]) -> KnownSinks:
        """Those of the rows of a state table."""
        listed = list(rows)
        pairs = [
            (PreparedTxnState(text).producer, row.transactional_id)
            for row in listed
            for text in (row.prepared_transaction_state, row.settled)
        ]
        producers = {pair.producer_id: transactional_id for pair, transactional_id in pairs if pair is not None}
        return cls(frozenset(row.transactional_id for row in listed), producers)


def end_known(owner: TransactionDetails, *, is_sink: bool | None) -> tuple[str, ...]:
    """What ends a transaction that its coordinator knows.

    Args:
        owner: the transactional id that has it.
        is_sink: whether that is a sink's; None where no database was asked.
    """
    if owner.state != TransactionState.ONGOING:
        wait = f"wait: its markers are on their way ({owner.state}); if that state stays, a leader has refused one"
        return (f"{wait} (see the log of broker {owner.coordinator}), and a restart of that broker sends them again",)
    named = f"--transactional-id {shlex.quote(owner.transactional_id)}"
    recover = remedy(f"{RECOVER} {named}", f"{'' if is_sink else 'where it is a sink: '}{_AS_DECIDED}")
    terminate = remedy(
        f"{_TOOL} force-terminate {named}",
        f"where {'the database' if is_sink else 'its owner'} is gone for good: aborts it in every partition, and "
        "fences its producer",
    )
    if owner.two_phase_commit:
        wait = "let its owner end it, or start that again: with two-phase commit nobody else does"
        return (wait, terminate) if is_sink is False else (wait, recover, terminate)
    wait = f"wait: its producer ends it, or the coordinator {owner.timeout_ms} ms after it began"
    return (wait, recover, terminate) if is_sink else (wait, terminate)


def end_hanging(found: OpenTransaction, *, sink: str | None) -> tuple[str, ...]:
    """What ends a transaction that no coordinator will end.

    Args:
        found: the transaction.
        sink: the transactional id of the sink that it belongs to; None where none is known.
    """
    where = f"--topic {shlex.quote(found.topic)} --partition {found.partition} --start-offset {found.start_offset}"
    change = f"no reader ever sees its records in {found.where}; refused where a coordinator knows it"
    abort = remedy(f"{_TOOL} abort {where}", change)
    if sink is None:
        return (abort,)
    named = f"--transactional-id {shlex.quote(sink)}"
    look = remedy(f"{STATUS} {named}", "changes nothing: whether the database of its sink has decided it")
    recover = remedy(f"{RECOVER} {named}", f"before any abort: {_AS_DECIDED}, or says why not")
    return look, recover, abort


def end_of_sink(transactional_id: str) -> str:
    """What ends the open transaction of a sink."""
    return remedy(f"{RECOVER} --transactional-id {shlex.quote(transactional_id)}", _AS_DECIDED)


def after_termination(transactional_id: str) -> str:
    """What tells whether force-terminate has taken a batch from Kafka that a database has."""
    change = "where it is a sink: notes the batch as owed where its database has decided it, for the job to send again"
    return remedy(f"{RECOVER} --transactional-id {shlex.quote(transactional_id)}", change)


def with_cluster(remedies: Iterable[str], connection: NamedConnection) -> tuple[str, ...]:
    """The remedies with complete commands.

    Args:
        remedies: with bare commands.
        connection: where the cluster is. A database that it does not name is for a person to name, as URL.
    """
    return tuple(_BARE.sub(lambda found: _named(found[0], connection), each) for each in remedies)


def _named(command: str, connection: NamedConnection) -> str:
    words = [command, connection.words] if connection.words else [command]
    return " ".join([*words, "--database URL"] if command in (RECOVER, STATUS) and not connection.database else words)
