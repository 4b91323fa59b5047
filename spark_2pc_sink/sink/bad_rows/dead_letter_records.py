"""The records of dead letters: what the dead-letter table has of a bad row, as a record of the dead-letter topic. Pure.

A replay makes the same records from the table: byte for byte, and in the same order, since the digest of the batch
covers them. So the JSON of a row is written in one form, whether Spark made it or ``jsonb`` has changed it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from spark_2pc_sink.wire.record_list import RECORD_BYTES, partition_for_key, record_content

if TYPE_CHECKING:
    from collections.abc import Iterable

    from spark_2pc_sink.sink.bad_rows.bad_row import BadRow

#: A letter with more bytes than these, uncompressed, goes without its row: below what a topic takes by default (Kafka:
#: max.message.bytes, 1 048 588), so that a topic which takes more changes nothing.
LETTER_BYTES_MAX: Final = 1_000_000
#: A topic that takes fewer bytes may not even have room for a letter without its row.
MESSAGE_BYTES_MIN: Final = 32 * 1024
#: A topic that takes so many, which is Kafka's default, takes each letter with at most `LETTER_BYTES_MAX`.
MESSAGE_BYTES_WANTED: Final = 1_048_588
#: Names of headers. Kafka Connect's begin with ``__connect.errors.`` (KIP-298).
HEADER_PREFIX: Final = "__spark_2pc.errors."


def too_small(message_bytes_max: int) -> str:
    """Why a topic with this max.message.bytes takes no letters; '' where it does."""
    if message_bytes_max >= MESSAGE_BYTES_MIN:
        return ""
    return f"max.message.bytes of the topic is {message_bytes_max}, and a letter may need {MESSAGE_BYTES_MIN}"


@dataclass(frozen=True, kw_only=True)
class LetterBatch:
    """The batch that dead letters are of.

    Attributes:
        transactional_id: the sink's id.
        query_id: Spark's id of the query.
        batch_id: Spark's id of the batch.
        table: the dead-letter table, as SQL spells it.
    """

    transactional_id: str
    query_id: str
    batch_id: int
    table: str


@dataclass(frozen=True)
class LetterRecord:
    """One record.

    Attributes:
        partition: of the topic, by Kafka's default partitioner.
        content: key, value and headers as a record has them.
    """

    partition: int
    content: bytes


def letter_records(
    rows: Iterable[BadRow], batch: LetterBatch, *, partition_count: int, bytes_max: int
) -> list[LetterRecord]:
    """The records of the bad rows of a batch, in the order of their identities.

    Args:
        rows: each identity once.
        batch: whose they are.
        partition_count: of the topic.
        bytes_max: bytes of one record, uncompressed; a larger one goes without its row.
    """
    records = []
    for row in sorted(rows, key=lambda each: each.identity):
        key, headers = row.identity.hex().encode(), _headers(row, batch)
        content = record_content(key, _value(row, batch, with_row=True), headers)
        if len(content) + RECORD_BYTES > bytes_max:
            content = record_content(key, _value(row, batch, with_row=False), headers)
        records.append(LetterRecord(partition_for_key(key, partition_count), content))
    return records


def _value(row: BadRow, batch: LetterBatch, *, with_row: bool) -> bytes:
    """The columns of the table as JSON, all but the time of the decision: no record is made after it."""
    columns = {
        "transactional_id": batch.transactional_id,
        "query_id": batch.query_id,
        "batch_id": batch.batch_id,
        "identity": row.identity.hex(),
        "occurrences": row.occurrences,
        "output": row.output,
        "reason": row.reason,
        "sqlstate": row.sqlstate,
    }
    parts = [f"{_text(name)}:{_json(value)}" for name, value in columns.items()]
    parts.append(f'"row":{canonical_json(row.row) if with_row else "null"}')
    if not with_row:
        parts.append(f'"row_left_out":{_text(f"the row is in table {batch.table}")}')
    return f"{{{','.join(parts)}}}".encode()


def _headers(row: BadRow, batch: LetterBatch) -> list[tuple[str, bytes]]:
    told = {
        "transactional.id": batch.transactional_id,
        "query.id": batch.query_id,
        "batch.id": str(batch.batch_id),
        "occurrences": str(row.occurrences),
        "output": row.output,
        "reason": row.reason,
        "sqlstate": row.sqlstate,
    }
    return [(HEADER_PREFIX + name, text.encode()) for name, text in told.items()]


def canonical_json(text: str) -> str:
    """The one form of a JSON text: that of the text, and that of what PostgreSQL's ``jsonb`` makes of it.

    ``jsonb`` orders the keys of an object, writes numbers without an exponent, and has no U+0000, of which the sink
    makes U+FFFD. Keys are in the order of their code points here, since that of ``jsonb`` is nobody's promise.
    """
    return _json(json.loads(text, parse_float=Decimal, parse_int=Decimal))


def _json(value: Any) -> str:
    if isinstance(value, dict):
        members = {name.replace("\0", "\ufffd"): member for name, member in value.items()}
        return f"{{{','.join(f'{_text(name)}:{_json(members[name])}' for name in sorted(members))}}}"
    if isinstance(value, list):
        return f"[{','.join(map(_json, value))}]"
    if isinstance(value, Decimal):
        # PostgreSQL's numeric has no negative zero, and as many digits behind the point as the text asks for.
        return format(value.copy_abs() if value.is_zero() else value, "f")
    if isinstance(value, str):
        return _text(value.replace("\0", "\ufffd"))
    return json.dumps(value)


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
