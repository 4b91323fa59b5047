"""Remedies for open transactions: the commands that end one, depending on its owner. The safest is first.

A sink's transaction is ended by ``spark-2pc recover``, as the sink's database has decided; any other way may leave
Kafka without a batch that the database has. The database identifies its sinks by the ids and pairs in its state table.
Without one the owner is unknown, and a transaction without a timeout (two-phase commit, KIP-939) may be a sink's.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from spark_2pc_sink.choices.choice import RECOVER, STATUS, remedy
from spark_2pc_sink.ids import PreparedTxnState, TransactionState
from spark_2pc_sink.kafka.transaction_queries import OpenTransaction, TransactionDetails
from spark_2pc_sink.recovery.report import NamedConnection

if TYPE_CHECKING:
    from jdbc_state import StateRow

_TOOL: Final = "spark-2pc transactions"
_AS_DECIDED: Final = "ends it as the sink's database has decided"
_BARE: Final = re.compile(r"^spark-2pc (?:recover|status|transactions [a-z-]+)")


@dataclass(frozen=True)
class KnownSinks:
    """A database's sinks."""

    ids: frozenset[str]
    producers: Mapping[int, str]

    @classmethod
    def of(cls, rows: Iterable[StateRow]) -> KnownSinks:
        listed = list(rows)
        pairs = [
            (PreparedTxnState(text).producer, row.transactional_id)
            for row in listed
            for text in (row.prepared_transaction_state, row.settled)
        ]
        producers = {pair.producer_id: transactional_id for pair, transactional_id in pairs if pair is not None}
        return cls(frozenset(row.transactional_id for row in listed), producers)


def end_known(owner: TransactionDetails, *, is_sink: bool | None) -> tuple[str, ...]:
    """Remedies for a transaction that its coordinator knows.

    Args:
        is_sink: whether it belongs to a sink; None if no database was asked.
    """
    if owner.state != TransactionState.ONGOING:
        wait = (
            f"wait: its markers are being written ({owner.state}); if that state stays, a leader has refused one (see"
        )
        return (f"{wait} the log of broker {owner.coordinator}), and a restart of that broker sends them again",)
    named = f"--transactional-id {shlex.quote(owner.transactional_id)}"
    recover = remedy(f"{RECOVER} {named}", f"{'' if is_sink else 'if it is a sink: '}{_AS_DECIDED}")
    terminate = remedy(
        f"{_TOOL} force-terminate {named}",
        f"if {'the database' if is_sink else 'its owner'} is permanently lost: aborts it in every partition, and "
        "fences its producer",
    )
    if owner.two_phase_commit:
        wait = "let its owner end it, or restart the owner: with two-phase commit it does not time out"
        return (wait, terminate) if is_sink is False else (wait, recover, terminate)
    wait = f"wait: its producer ends it, or the coordinator aborts it {owner.timeout_ms} ms after it began"
    return (wait, recover, terminate) if is_sink else (wait, terminate)


def end_hanging(found: OpenTransaction, *, sink: str | None) -> tuple[str, ...]:
    """Remedies for a hanging transaction.

    Args:
        sink: the owning sink's transactional id; None if unknown.
    """
    where = f"--topic {shlex.quote(found.topic)} --partition {found.partition} --start-offset {found.start_offset}"
    change = f"readers never see its records in {found.where}; refused if a coordinator knows it"
    abort = remedy(f"{_TOOL} abort {where}", change)
    if sink is None:
        return (abort,)
    named = f"--transactional-id {shlex.quote(sink)}"
    look = remedy(f"{STATUS} {named}", "changes nothing: shows whether the database of its sink has decided it")
    recover = remedy(f"{RECOVER} {named}", f"before any abort: {_AS_DECIDED}, or reports why not")
    return look, recover, abort


def end_of_sink(transactional_id: str) -> str:
    return remedy(f"{RECOVER} --transactional-id {shlex.quote(transactional_id)}", _AS_DECIDED)


def after_termination(transactional_id: str) -> str:
    """The check whether force-terminate has removed a batch from Kafka that a database has."""
    change = "if it is a sink: records the batch as owed if its database has decided it, so that the job sends it again"
    return remedy(f"{RECOVER} --transactional-id {shlex.quote(transactional_id)}", change)


def with_cluster(remedies: Iterable[str], connection: NamedConnection) -> tuple[str, ...]:
    """The remedies with complete commands.

    Args:
        connection: the cluster's address. A database not named in it must be added by the operator, as a URL.
    """
    return tuple(_BARE.sub(lambda found: _named(found[0], connection), each) for each in remedies)


def _named(command: str, connection: NamedConnection) -> str:
    words = [command, connection.words] if connection.words else [command]
    return " ".join([*words, "--database URL"] if command in (RECOVER, STATUS) and not connection.database else words)
