"""State rows as recovery reads them: the part that decides, and a line for people."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.ids import PreparedTxnState, check_transactional_id
from spark_2pc_sink.plural import counted
from spark_2pc_sink.recipe.resolve import RowStatus, RowView

if TYPE_CHECKING:
    from jdbc_state import StateRow

#: Partitions that a line names; a batch may have hundreds.
_PLACES_MAX: Final = 6
_PARTITION: Final = re.compile(r".+-[0-9]+", re.ASCII)


def view_of(row: StateRow) -> RowView:
    """The part of a state row that `resolve` decides by."""
    return RowView(
        status=RowStatus(row.status),
        prepared=PreparedTxnState(row.prepared_transaction_state),
        settled=PreparedTxnState(row.settled),
        cluster_id=row.cluster_id,
    )


def shown(row: StateRow) -> str:
    """The row in one line: its batch, its status and its pairs."""
    batch = "no batch" if row.batch_id is None else f"batch {row.batch_id}"
    return f"{batch}, {view_of(row)}"


def batch_line(row: StateRow) -> str:
    """The row's batch: how much it is, since when, and where its records are."""
    if row.batch_id is None:
        return "none yet"
    since = "" if row.decided_at is None else f", decided {row.decided_at:%Y-%m-%d %H:%M:%S %Z}"
    places = [f"{name} {first}..{last}" for name, (first, last) in sorted(row.kafka_offsets.items())]
    more = f" and {len(places) - _PLACES_MAX} more" if len(places) > _PLACES_MAX else ""
    records = f"; {', '.join(places[:_PLACES_MAX])}{more}" if places else ""
    return f"{row.batch_id}: {counted(row.row_count, 'row')}, {counted(row.record_count, 'record')}{since}{records}"


def owed_reason(row: StateRow) -> str:
    """What Kafka is owed: which batch, how much of it, and since when."""
    since = "" if row.decided_at is None else f" since {row.decided_at:%Y-%m-%d %H:%M:%S %Z}"
    return (
        f"Kafka is owed batch {row.batch_id}: the table has its {counted(row.row_count, 'row')}{since}, and Kafka has "
        f"aborted its {counted(row.record_count, 'record')}"
    )


def problem_of(row: StateRow) -> str:
    """Why the row cannot be understood, '' where it can: a person may have written it, or a later version."""
    try:
        check_transactional_id(row.transactional_id)
        view_of(row)
    except ConfigurationError as error:
        return f"{error.option} {error.value!r}: {error.rule}"
    except ValueError:
        return f"status {row.status!r} is none of {', '.join(status.value for status in RowStatus)}"
    bad = [name for name in row.kafka_offsets if not _PARTITION.fullmatch(name)]
    return f"kafka_offsets name {bad[0]!r}, which is no topic-partition" if bad else ""
