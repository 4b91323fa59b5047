"""Bad rows by themselves: counted by identity, copied row by row, searched for by halves, and told in letters."""

from __future__ import annotations

import json
import struct
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from spark_2pc_sink.errors import ConstraintError, RecordRefusedError, RecordTooLargeError, UnstorableValueError
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.kafka.record_encoder import partition_for_keys, records_bytes_max
from spark_2pc_sink.sink.bad_rows.bad_row import (
    IDENTITY,
    NUMBER,
    WINS,
    BadRow,
    BadRows,
    RefusedRow,
    SiftedPart,
    canonical_json,
    find_refused,
    name_of,
    pack_rows,
    try_again,
    unpack_rows,
)
from spark_2pc_sink.sink.records.record_side import (
    DEAD_LETTER_BYTES_MAX,
    MESSAGE_BYTES_MIN,
    dead_letter_records,
)
from spark_2pc_sink.wire.batch_format import Record
from spark_2pc_sink.wire.batch_reader import decode_record_batches
from spark_2pc_sink.wire.record_batch import assign_producer, encode_listed_batch
from tests.unit.kafka.support import PAIR

ONE, TWO = "1" * 32, "2" * 32


def refused(identity: str, number: int, reason: str = "why") -> RefusedRow:
    return RefusedRow(identity, number, "table t", reason, "23514")


def test_a_bad_row_counts_once_however_often_it_was_refused() -> None:
    """The first reason is kept, and a later sift has not seen those that were left out."""
    found = BadRows().with_refused([[refused(ONE, 1, "first"), refused(ONE, 1, "second"), refused(ONE, 2)]])
    assert (found.occurrences, found[ONE].reason) == (2, "first")
    found = found.with_refused([[refused(ONE, 5), refused(TWO, 6)]])
    assert {identity: row.occurrences for identity, row in found.items()} == {ONE: 3, TWO: 1}


def test_a_reason_is_what_is_wrong_with_the_row() -> None:
    check = ConstraintError(table="t", constraint="c", column="", sqlstate="23514", detail="violates check")
    value = UnstorableValueError(column="name", row_key="key=1", value="'a'", rule="it is too long")
    large = RecordTooLargeError(topic="t", partition=0, row_key="1", record_bytes=9, limit="at most 8")
    keyless = RecordRefusedError(topic="t", partition=0, record="value 1", reason="it needs a key")
    reasons = [RefusedRow.of(ONE, 0, "table t", error) for error in (check, value, large, keyless)]
    assert [(row.reason, row.sqlstate) for row in reasons] == [
        ("violates check", "23514"),
        ("column 'name': 'a' cannot be stored: it is too long", ""),
        ("its record has 9 bytes: at most 8", ""),
        ("it needs a key", ""),
    ]


FIELDS = st.lists(st.one_of(st.none(), st.binary(max_size=20)), min_size=1, max_size=4)


def encoded(row: list[bytes | None]) -> bytes:
    """A tuple of PostgreSQL's documentation of COPY BINARY."""
    fields = (struct.pack("!i", -1) if field is None else struct.pack("!i", len(field)) + field for field in row)
    return struct.pack("!h", len(row)) + b"".join(fields)


def named(count: int) -> pa.RecordBatch:
    """Names of rows, of which a third is superseded."""
    identities = pa.array([f"{number:032x}" for number in range(count)])
    numbers = pa.array([number - 1 for number in range(count)], pa.int64())
    wins = pa.array([number % 3 < 2 for number in range(count)])
    return pa.RecordBatch.from_arrays([identities, numbers, wins], [IDENTITY, NUMBER, WINS])


@given(st.lists(FIELDS, min_size=1, max_size=12), st.data())
def test_every_range_of_rows_can_be_taken(rows: list[list[bytes | None]], data: st.DataObject) -> None:
    tuples = [encoded(row) for row in rows]
    part = SiftedPart(named(len(rows)), b"".join(tuples))
    start = data.draw(st.integers(0, len(rows)))
    stop = data.draw(st.integers(start, len(rows)))
    assert bytes(part.between(start, stop)) == b"".join(tuples[start:stop])


def test_a_part_keeps_the_names_of_its_rows() -> None:
    names, stream = named(3), b"".join(encoded([bytes([number])]) for number in range(3))
    part, again = (SiftedPart(*found) for found in unpack_rows(memoryview(pack_rows(names, stream) * 2)))
    assert again.names.equals(names)
    assert part.names.equals(names)
    assert [name_of(names, row) for row in range(3)] == [(f"{number:032x}", number - 1) for number in range(3)]
    assert (part.winners, len(part), bytes(part.between(0, 3))) == ([0, 1], 3, stream)
    some = part.only([0, 2])
    assert [name_of(some.names, row) for row in range(2)] == [name_of(names, 0), name_of(names, 2)]
    assert (some.winners, len(part.only([]))) == ([0], 0)
    assert bytes(some.between(1, 2)) == encoded([b"\x02"])


class Table:
    """Takes all rows of a try, or none: where one of them is bad, or its key is there already."""

    def __init__(self, keys: list[int], bad: set[int]) -> None:
        self.keys = keys
        self.bad = bad
        self.kept: list[int] = []
        self.tried: list[int] = []

    def __call__(self, start: int, stop: int) -> str | None:
        self.tried.append(stop - start)
        rows = range(start, stop)
        there = {self.keys[row] for row in self.kept}
        for row in rows:
            if row in self.bad:
                return f"row {row}"
            if self.keys[row] in there:
                return f"row {row} is there"
            there.add(self.keys[row])
        self.kept += rows
        return None


#: How many rows, and which of them are bad.
ROWS = st.integers(0, 300).flatmap(
    lambda count: st.tuples(st.just(count), st.sets(st.integers(0, max(count - 1, 0)), max_size=20))
)


@given(ROWS, st.none() | st.integers(0, 5))
def test_exactly_the_bad_rows_are_found(case: tuple[int, set[int]], most: int | None) -> None:
    """Each with its own refusal, up to one beyond the limit; the others are kept, once, in their order."""
    count, bad = case
    bad &= set(range(count))
    table = Table(list(range(count)), bad)
    found = find_refused(count, table, most=count if most is None else most)
    assert found == [(row, f"row {row}") for row in sorted(bad)][: None if most is None else most + 1]
    if most is None:
        assert table.kept == [row for row in range(count) if row not in bad]


@given(st.lists(st.integers(0, 30), max_size=120))
def test_of_rows_with_one_key_the_first_is_kept(keys: list[int]) -> None:
    """Rows that stand in each other's way: those behind the first are refused."""
    table = Table(keys, set())
    refused = [row for row, _ in find_refused(len(keys), table, most=len(keys))]
    first = {key: row for row, key in reversed(list(enumerate(keys)))}
    assert table.kept == sorted(first.values())
    assert sorted(refused + table.kept) == list(range(len(keys)))


def test_a_refusal_that_does_not_come_back_is_no_bad_row() -> None:
    """What a trigger refuses at random, and takes when it is asked once more, is kept."""
    answers = iter(["both", None, None])
    assert find_refused(2, lambda _start, _stop: next(answers), most=2) == []


@pytest.mark.parametrize("refers_to", [{0: 2, 1: 0}, {2: 1, 1: 0, 0: 3}])
def test_a_row_may_refer_to_one_behind_it(refers_to: dict[int, int]) -> None:
    """Refused at first, and taken when that one is there; what refers to a bad row stays refused."""
    kept: set[int] = set()

    def attempt(start: int, stop: int) -> str | None:
        rows = set(range(start, stop))
        for row in rows:
            if row == 4 or (row in refers_to and refers_to[row] not in kept | rows):
                return f"row {row}"
        kept.update(rows)
        return None

    found = try_again(find_refused(6, attempt, most=6), lambda row: attempt(row, row + 1))
    assert found == [(4, "row 4")]
    assert kept == {0, 1, 2, 3, 5}


BATCH: dict[str, str | int] = {"transactional_id": "orders", "query_id": "q", "batch_id": 7}
TABLE = '"public"."letters"'
ROW = BadRow("10" * 16, 2, "table public.orders", 'refused: "ä"', "23514", row='{"id":1,"amount":-1.50}')
#: Not in their order.
LETTER_ROWS = [replace(ROW, identity=f"{number:02x}" * 16) for number in (9, 3, 200, 1)]


def made(rows: list[BadRow], *, partitions: int = 1, bytes_max: int = DEAD_LETTER_BYTES_MAX) -> list[tuple[int, bytes]]:
    return dead_letter_records(rows, BATCH, table=TABLE, partition_count=partitions, bytes_max=bytes_max)


def records(letters: list[tuple[int, bytes]]) -> list[Record]:
    contents = [content for _, content in letters]
    batch = encode_listed_batch(TopicPartition("bad", 0), contents, timestamp_ms=5, compression="none")
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
    letters = made(LETTER_ROWS, partitions=5)
    assert letters == made(LETTER_ROWS[::-1], partitions=5)
    keys = [record.key for record in records(letters)]
    assert keys == sorted(key or b"" for key in keys)
    assert [partition for partition, _ in letters] == list(partition_for_keys(pa.array(keys, pa.binary()), 5))


def test_a_letter_that_is_too_large_goes_without_its_row() -> None:
    """Also at the limit itself: what is one byte larger goes without."""
    large = replace(ROW, row=json.dumps({"text": "x" * 500_000}))
    [whole] = made([large])
    size = len(whole[1]) + 12
    assert made([large], bytes_max=size) == [whole]
    [record] = records(made([large], bytes_max=size - 1))
    told = json.loads(record.value or b"")
    assert told["row"] is None
    assert told["row_left_out"] == 'the row is in table "public"."letters"'
    assert len(record.value or b"") < 1_000


def test_a_topic_of_32_kib_takes_the_longest_letter_without_a_row() -> None:
    error = ConstraintError(table="t", constraint="c", column="", sqlstate="23514", detail="\x01" * 5_000)
    reason = RefusedRow.of("", 0, "o", error).reason
    batch: dict[str, str | int] = {
        "transactional_id": "t" * 255,
        "query_id": "\x01" * 255,
        "batch_id": 2**63 - 1,
    }
    row = replace(ROW, occurrences=2**63 - 1, output="\x01" * 255, reason=reason, row=json.dumps("x" * 40_000))
    allowed = records_bytes_max(MESSAGE_BYTES_MIN)
    [(_, content)] = dead_letter_records([row], batch, table="t" * 140, partition_count=1, bytes_max=allowed)
    assert b"row_left_out" in content
    assert len(content) + 12 <= allowed


@pytest.mark.parametrize(
    ("by_spark", "by_jsonb"),
    [
        ('{"b":1,"a":[true,null]}', '{"a": [true, null], "b": 1}'),
        ("[1.0E10,-0.0,1.50,1E-7]", "[10000000000, 0.0, 1.50, 0.0000001]"),
        ('{"a\\u0000":"\\u0000\\"\\\\u0000"}', '{"a\ufffd": "\ufffd\\"\\\\u0000"}'),
        ('{"a":1,"a":2}', '{"a": 2}'),
    ],
)
def test_the_json_of_a_row_is_the_same_before_and_behind_the_table(by_spark: str, by_jsonb: str) -> None:
    assert canonical_json(by_spark) == canonical_json(by_jsonb)
    assert canonical_json(canonical_json(by_spark)) == canonical_json(by_spark)


def test_a_negative_zero_is_zero_as_in_jsonb() -> None:
    assert canonical_json('{"a":-0.0,"b":-0.50}') == '{"a":0.0,"b":-0.50}'


def test_other_rows_have_other_json() -> None:
    """No digit of a number is lost: a replay with another row would pass for the same."""
    texts = ["1", "1.0", "1.00", "10", '"1"', "null", "12345678901234567890123456789012345.1", "true", "[]", "{}"]
    texts += ["12345678901234567890123456789012345.2"]
    assert len({canonical_json(text) for text in texts}) == len(texts)
