"""What tests of staged rows share: tasks that stage rows, and a driver that takes them."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from spark_2pc_sink.ids import ProducerIdAndEpoch
from spark_2pc_sink.sink.contract.batch_work import TransactionTicket
from spark_2pc_sink.sink.contract.receipts import EncodeReceipt, LaneRows
from spark_2pc_sink.sink.table.table_writer import AppendedRows
from spark_2pc_sink.sink.transfer.copy_channel import CopyChannel
from spark_2pc_sink.sink.transfer.copy_thread import CopyTarget, CopyThread
from spark_2pc_sink.sink.transfer.row_encoder import PartWriter
from spark_2pc_sink.sink.transfer.staging_tables import StagingName, StagingSession, TableStaging, owner_of
from tests.integration.postgres.database_tables import orders, rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import sqlalchemy as sa

    from spark_2pc_sink.sink.contract.row_transfer import Staging
    from spark_2pc_sink.sink.table.column_plan import ColumnPlan
    from spark_2pc_sink.sink.table.table_writer import TableRows

ID = "my sink"
RUN = 2**40
#: One row of it is more than an encoder holds back.
LARGE = "x" * 2**21


def ticket(*, generation: int = 3, attempt: int = 1, sink: str = ID) -> TransactionTicket:
    return TransactionTicket(
        transactional_id=sink,
        producer=ProducerIdAndEpoch(1, 0),
        transaction_version=2,
        generation=generation,
        transaction=attempt,
        application_name=f"2pc:{sink}:{generation}",
        kafka_only=False,
    )


TICKET = ticket()


def session(url: str, **more: Any) -> StagingSession:
    defaults: dict[str, Any] = {
        "database": url,
        "application_name": "2pc:my sink:3",
        "connect_timeout_s": 5,
        "lock_timeout_ms": 5_000,
        "statement_timeout_ms": 60_000,
    }
    return StagingSession(**{**defaults, **more})


def owner(sink: str = ID) -> str:
    """The owner of the staging tables of a sink whose state table has the name that it has by default."""
    return owner_of(sink, state_schema="public", state_table="kafka_transaction_state")


def name(of: TransactionTicket = TICKET, source: int = 0) -> str:
    """The name of a source's staging table."""
    return str(StagingName.of(owner(of.transactional_id), of, source))


def tables(url: str, *, schema: str = "public", of: TransactionTicket = TICKET, **more: Any) -> TableStaging:
    return TableStaging(session(url, **more), schema, owner(of.transactional_id), of)


@contextmanager
def writing(place: Staging, *, source: int = 0, part_bytes: int | None = None) -> Iterator[PartWriter]:
    """A task that stages rows."""
    with place.store(source, RUN) as store:
        yield PartWriter(store, part_bytes=part_bytes or place.part_bytes)


def stage(place: Staging, plan: ColumnPlan, *values: tuple[Any, ...], source: int = 0) -> EncodeReceipt:
    """What a task does with such rows, and its account."""
    *pieces, tail = orders(plan, *values)
    with writing(place, source=source) as writer:
        for piece in pieces:
            writer.write(piece)
        writer.finish(tail)
    return copied(source, len(values), task_attempt=RUN, staged_parts=writer.parts)


def copied(source: int, rows: int, *, task_attempt: int, staged_parts: int = 0) -> EncodeReceipt:
    """The account of a task that has encoded so many rows."""
    return EncodeReceipt(source, task_attempt=task_attempt, lanes={0: LaneRows(rows, rows, staged_parts)})


def copying(
    connection: sa.Connection,
    plan: ColumnPlan,
    place: Staging,
    channel: CopyChannel | None = None,
    kind: Callable[[sa.Connection, ColumnPlan], TableRows] = AppendedRows,
    *,
    look_s: float = 0.01,
) -> CopyThread:
    return CopyThread(
        channel or CopyChannel(),
        TICKET.attempt,
        open_decision=lambda: connection,
        targets=[CopyTarget(0, lambda opened: kind(opened, plan), place.staged)],
        look_s=look_s,
        idle_s=20.0,
        early=False,
        refused=lambda: None,
    )


def taken(copy: CopyThread) -> bool:
    """True when it has taken something that was staged."""
    return 0 in copy._staged and bool(copy._staged[0].taken)


def table(url: str) -> list[tuple[Any, ...]]:
    return rows(url, "SELECT id, item FROM orders ORDER BY id")
