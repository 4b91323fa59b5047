"""The records of dead letters: what they say, in which order, and that a replay makes the same of the table's rows."""

from __future__ import annotations

import json
from dataclasses import replace

import pyarrow as pa
import pytest

from spark_2pc_sink.errors import ConstraintError
from spark_2pc_sink.kafka.record_encoder import partition_for_keys, records_bytes_max
from spark_2pc_sink.sink.bad_rows.bad_row import BadRow, RefusedRow
from spark_2pc_sink.sink.records.record_side import (
    LETTER_BYTES_MAX,
    MESSAGE_BYTES_MIN,
    MESSAGE_BYTES_WANTED,
    LetterBatch,
    LetterRecord,
    canonical_json,
    letter_records,
    too_small,
)
from spark_2pc_sink.wire.batch_format import Record
from spark_2pc_sink.wire.batch_reader import decode_record_batches
from spark_2pc_sink.wire.record_batch import assign_producer
from spark_2pc_sink.wire.record_list import encode_listed_batch
from tests.unit.producer.support import PAIR

BATCH = LetterBatch(transactional_id="orders", query_id="q", batch_id=7, table='"public"."letters"')
ROW = BadRow(b"\x10" * 16, 2, "table public.orders", 'refused: "ä"', "23514", row='{"id":1,"amount":-1.50}')
#: Not in their order.
ROWS = [replace(ROW, identity=bytes([number]) * 16) for number in (9, 3, 200, 1)]


def made(rows: list[BadRow], *, partitions: int = 1, bytes_max: int = LETTER_BYTES_MAX) -> list[LetterRecord]:
    return letter_records(rows, BATCH, partition_count=partitions, bytes_max=bytes_max)


def records(letters: list[LetterRecord]) -> list[Record]:
    """As a reader has them."""
    batch = encode_listed_batch("bad", [each.content for each in letters], timestamp_ms=5, compression="none")
    [decoded] = decode_record_batches(assign_producer(batch.payload, producer=PAIR, base_sequence=0))
    return list(decoded.records())


def test_a_letter_has_the_columns_of_the_table_and_headers_that_say_the_same() -> None:
    [record] = records(made([ROW]))
    assert record.key == b"10" * 16
    assert json.loads(record.value or b"") == {
        "transactional_id": "orders",
        "query_id": "q",
        "batch_id": 7,
        "identity": "10" * 16,
        "occurrences": 2,
        "output": "table public.orders",
        "reason": 'refused: "ä"',
        "sqlstate": "23514",
        "row": {"id": 1, "amount": -1.5},
    }
    assert list(record.headers) == [
        ("__spark_2pc.errors.transactional.id", b"orders"),
        ("__spark_2pc.errors.query.id", b"q"),
        ("__spark_2pc.errors.batch.id", b"7"),
        ("__spark_2pc.errors.occurrences", b"2"),
        ("__spark_2pc.errors.output", b"table public.orders"),
        ("__spark_2pc.errors.reason", 'refused: "ä"'.encode()),
        ("__spark_2pc.errors.sqlstate", b"23514"),
    ]


def test_letters_are_in_the_order_of_their_identities_and_where_kafka_puts_their_keys() -> None:
    """Whatever order a search has found them in."""
    letters = made(ROWS, partitions=5)
    assert letters == made(ROWS[::-1], partitions=5)
    keys = [record.key for record in records(letters)]
    assert keys == sorted(key or b"" for key in keys)
    assert [each.partition for each in letters] == list(partition_for_keys(pa.array(keys, pa.binary()), 5))


def test_a_letter_that_is_too_large_goes_without_its_row() -> None:
    """Also at the limit itself: what is one byte larger goes without."""
    large = replace(ROW, row=json.dumps({"text": "x" * 500_000}))
    [whole] = made([large])
    size = len(whole.content) + 12
    assert made([large], bytes_max=size) == [whole]
    [record] = records(made([large], bytes_max=size - 1))
    told = json.loads(record.value or b"")
    assert told["row"] is None
    assert told["row_left_out"] == 'the row is in table "public"."letters"'
    assert len(record.value or b"") < 1_000


@pytest.mark.parametrize("character", ["\x01", '"', "\U0001f600"])
def test_a_topic_of_32_kib_takes_the_longest_letter_without_a_row(character: str) -> None:
    """Names and reason are bounded."""
    error = ConstraintError(table="t", constraint="c", column="", sqlstate="23514", detail=character * 5_000)
    reason = RefusedRow.of(b"", 0, "o", error).reason
    batch = LetterBatch(transactional_id="t" * 255, query_id=character * 255, batch_id=2**63 - 1, table="t" * 140)
    row = replace(ROW, occurrences=2**63 - 1, output=character * 255, reason=reason, row=json.dumps("x" * 40_000))
    allowed = records_bytes_max(MESSAGE_BYTES_MIN)
    [letter] = letter_records([row], batch, partition_count=1, bytes_max=allowed)
    assert b"row_left_out" in letter.content
    assert len(letter.content) + 12 <= allowed


@pytest.mark.parametrize(
    ("by_spark", "by_jsonb"),
    [
        ('{"b":1,"a":[true,null]}', '{"a": [true, null], "b": 1}'),
        ('{"long":1,"z":2}', '{"z": 2, "long": 1}'),
        ("[1.0E10,-0.0,1.50,1E-7,12345678901234567890123456789012345.678]",
         "[10000000000, 0.0, 1.50, 0.0000001, 12345678901234567890123456789012345.678]"),
        ('{"a\\u0000":"\\u0000\\"\\\\u0000"}', '{"a\ufffd": "\ufffd\\"\\\\u0000"}'),
        ('"\\u00e4"', '"ä"'),
        ('{"a":1,"a":2}', '{"a": 2}'),
    ],
)  # fmt: skip
def test_the_json_of_a_row_is_the_same_before_and_behind_the_table(by_spark: str, by_jsonb: str) -> None:
    assert canonical_json(by_spark) == canonical_json(by_jsonb)
    assert canonical_json(canonical_json(by_spark)) == canonical_json(by_spark)


def test_other_rows_have_other_json() -> None:
    """No digit of a number is lost: a replay with another row would pass for the same."""
    texts = ["1", "1.0", "1.00", "10", '"1"', "null", "12345678901234567890123456789012345.1", "true", "[]", "{}"]
    texts += ["12345678901234567890123456789012345.2"]
    assert len({canonical_json(text) for text in texts}) == len(texts)


def test_a_topic_that_takes_32_kib_is_large_enough() -> None:
    """One as Kafka makes it by default takes every letter that goes with its row."""
    assert too_small(MESSAGE_BYTES_MIN) == ""
    assert "is 32767, and a letter may need 32768" in too_small(MESSAGE_BYTES_MIN - 1)
    assert records_bytes_max(MESSAGE_BYTES_WANTED) >= LETTER_BYTES_MAX
