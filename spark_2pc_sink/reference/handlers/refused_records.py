"""Why a batch was refused for some of its records: which they are, and what Kafka says of them (KIP-467)."""

from __future__ import annotations

from typing import Final, NamedTuple

from spark_2pc_sink.codes import Code
from spark_2pc_sink.reference.log.log_values import LogSettings
from spark_2pc_sink.reference.storage.errors import BatchError
from spark_2pc_sink.reference.storage.records import decode_records
from spark_2pc_sink.wire.batch_format import BatchHeader, Buffer

#: What `PartitionLog.append` has against single records of a batch.
NAMES_RECORDS: Final = frozenset({Code.INVALID_TIMESTAMP, Code.INVALID_RECORD})
#: Records of a refused batch that are named; Kafka names all, and its clients show three.
RECORD_ERRORS_MAX: Final = 1000
_KEYLESS: Final = "Compacted topic cannot accept message without key in topic partition"
#: message.timestamp.before.max.ms, whose default lets every record pass.
_BEFORE_MAX_MS: Final = 2**63 - 1


class Refusal(NamedTuple):
    """The answer for a batch, see `explain`; records by their positions in it, with a text for each."""

    code: int
    message: str
    records: list[tuple[int, str]]


def explain(records: Buffer, header: BatchHeader, *, settings: LogSettings, place: str, now_ms: int) -> Refusal | None:
    """The records for which a batch is refused, and the code, in Kafka's words (``LogValidator``).

    A record without a key is looked at no further, so the code of a time that is out of range is another one's.

    Args:
        records: the batch.
        header: its own.
        settings: of the log.
        place: topic and partition, as Kafka writes them.
        now_ms: milliseconds since 1970.

    Returns:
        The first `RECORD_ERRORS_MAX` of them; None where the records cannot be read, or are in order after all.
    """
    latest_ms = now_ms + settings.timestamp_after_max_ms
    named: list[tuple[int, str]] = []
    count, out_of_range = 0, False
    try:
        for position, record in enumerate(decode_records(bytes(records), header)):
            if settings.compacted and record.key is None:
                text = f"{_KEYLESS} {place}"
            elif record.timestamp_ms > latest_ms:
                out_of_range = True
                text = (
                    f"Timestamp {record.timestamp_ms} of message with offset {position} is out of range. The timestamp "
                    f"should be within [{now_ms - _BEFORE_MAX_MS}, {latest_ms}]"
                )
            else:
                continue
            count += 1
            if count <= RECORD_ERRORS_MAX:
                named.append((position, text))
    except BatchError:
        return None
    if not named:
        return None
    if out_of_range:
        message = "One or more records have been rejected due to invalid timestamp"
        return Refusal(Code.INVALID_TIMESTAMP, message, named)
    shown = ", ".join(f"RecordError(batchIndex={at}, message='{text}')" for at, text in named[:3])
    message = (
        f"One or more records have been rejected due to {count} record errors in total, "
        f"and only showing the first three errors at most: [{shown}]"
    )
    return Refusal(Code.INVALID_RECORD, message, named)
