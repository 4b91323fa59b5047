"""A bad row: how it is named, how the bad rows among many are found, and what is kept of it.

The identity of a row is the first half of a SHA-256 over all columns of the batch, as Spark SQL: nobody who writes rows
can make another row that is taken for a bad one. `_encoded` tells null from an empty text, and where one column ends
from where the next begins; it follows no setting of the session, as a cast of a timestamp to text does, and keeps bytes
that are no text.

A search goes by a fingerprint of 64 bits, since a SHA-256 of every row takes longer than to write it. Different rows
may have one fingerprint, so it alone never says that a row is bad: the identity of the few rows that have it is looked
at.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import numpy as np
import pyarrow as pa

from spark_2pc_sink.errors import (
    ConfigurationError,
    ConstraintError,
    DataError,
    RecordRefusedError,
    RecordTooLargeError,
    UnstorableValueError,
)
from spark_2pc_sink.sink.table.spark_sql import quoted
from spark_2pc_sink.wire.arrow_layout import binary_layout

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql.types import DataType, StructType


#: The columns that a sift adds to a batch. The first is an identity, or a fingerprint.
IDENTITY: Final = "_2pc_identity"
NUMBER: Final = "_2pc_number"
#: True for a row that no other of its key supersedes.
WINS: Final = "_2pc_wins"

_NULL: Final = "'~'"
_PLAIN: Final = "CAST({} AS STRING)"
_TEXT: Final = "hex(CAST({} AS BINARY))"
#: SQL for the text of a value by the class of its type: unambiguous in every session, and without the characters that
#: structure the encoding.
_FORMS: Final = (
    dict.fromkeys(("StringType", "CharType", "VarcharType"), _TEXT)
    | dict.fromkeys(("BooleanType", "ByteType", "ShortType", "IntegerType", "LongType", "FloatType"), _PLAIN)
    | dict.fromkeys(("DoubleType", "DecimalType", "DateType", "TimestampNTZType", "TimeType", "NullType"), _PLAIN)
    | dict.fromkeys(("DayTimeIntervalType", "YearMonthIntervalType", "CalendarIntervalType"), _PLAIN)
    | {
        "BinaryType": "hex({})",
        "TimestampType": "CAST(unix_micros({}) AS STRING)",
        "VariantType": "hex(to_json({}))",
    }
)


#: Of these Spark has no hash.
_WITHOUT_FINGERPRINT: Final = frozenset({"MapType", "VariantType"})


def identity_sql(schema: StructType) -> str:
    """The identity of a row of this schema, of type binary.

    Raises:
        ConfigurationError: a column's type cannot be told apart, or two columns have one name.
    """
    names = schema.fieldNames()
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise _refused(twice, "two columns of the batch have this name", "rename one of them before the sink")
    parts = [_encoded(quoted(field.name), field.dataType, field.name) for field in schema.fields]
    return f"unhex(left(sha2({_joined(parts)}, 256), {2 * IDENTITY_BYTES}))"


def fingerprint_sql(schema: StructType) -> str:
    """The fingerprint of a row of this schema, of type bigint. Spark makes none of maps: they do not count."""
    names = [quoted(field.name) for field in schema.fields if _has_fingerprint(field.dataType)]
    return f"xxhash64({', '.join(names)})" if names else "0L"


def _has_fingerprint(kind: DataType) -> bool:
    from pyspark.sql.types import ArrayType, StructType  # noqa: PLC0415 - `spark-2pc check` needs this file, not Spark

    if isinstance(kind, StructType):
        return all(_has_fingerprint(part.dataType) for part in kind.fields)
    if isinstance(kind, ArrayType):
        return _has_fingerprint(kind.elementType)
    return type(kind).__name__ not in _WITHOUT_FINGERPRINT


def _joined(parts: list[str]) -> str:
    return f"concat_ws(',', {', '.join(parts)})" if parts else "''"


def _encoded(sql: str, kind: DataType, column: str, depth: int = 0) -> str:
    """A text of a value, or `_NULL`; any other begins with an equals sign, and structures stand in brackets."""
    text = _text(sql, kind, column, depth)
    return f"if(({sql}) IS NULL, {_NULL}, concat('=', {text}))"


def _text(sql: str, kind: DataType, column: str, depth: int) -> str:
    from pyspark.sql.types import ArrayType, MapType, StructType  # noqa: PLC0415 - as above

    form = _FORMS.get(type(kind).__name__)
    if form is not None:
        return form.format(sql)
    if isinstance(kind, StructType):
        fields = [_encoded(f"{sql}.{quoted(part.name)}", part.dataType, column, depth) for part in kind.fields]
        return f"concat('(', {_joined(fields)}, ')')"
    if isinstance(kind, ArrayType):
        return _elements(sql, kind.elementType, column, depth)
    if isinstance(kind, MapType):
        entry = StructType().add("key", kind.keyType).add("value", kind.valueType)
        return _elements(f"map_entries({sql})", entry, column, depth)
    raise _refused(
        column,
        f"it has {kind.simpleString()}, of which this sink cannot tell two values apart",
        "convert it before the sink, or leave it out",
    )


def _elements(sql: str, kind: DataType, column: str, depth: int) -> str:
    element = f"_2pc_{depth}"
    encoded = f"transform({sql}, {element} -> {_encoded(element, kind, column, depth + 1)})"
    return f"concat('[', array_join({encoded}, ','), ']')"


def _refused(column: str, rule: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(
        option="bad_rows",
        value="dead_letter",
        rule=f"each row of the batch must be told from every other, and column {column!r} stands in the way: {rule}",
        remedy=remedy,
    )


#: Bytes of a row's identity.
IDENTITY_BYTES: Final = 16
#: Characters of a reason: PostgreSQL may quote the row in it.
_REASON_CHARACTERS_MAX: Final = 2_000


@dataclass(frozen=True)
class RefusedRow:
    """A row that an output refused. Can be pickled.

    Attributes:
        identity: the same for equal rows of a batch, see `row_identity`; a fingerprint until the row is looked up.
        number: tells equal rows apart, within one job of Spark.
        output: which output refused it.
        reason: what it said.
        sqlstate: PostgreSQL's code; '' where it was not asked.
    """

    identity: bytes
    number: int
    output: str
    reason: str
    sqlstate: str = ""

    @classmethod
    def of(cls, identity: bytes, number: int, output: str, error: DataError) -> RefusedRow:
        """The row that was refused with ``error``."""
        sqlstate = error.sqlstate if isinstance(error, ConstraintError) else ""
        return cls(identity, number, output, _reason(error)[:_REASON_CHARACTERS_MAX], sqlstate)


def _reason(error: DataError) -> str:
    """What is wrong with the row, without what its batch would need to hear."""
    if isinstance(error, ConstraintError):
        return error.detail
    if isinstance(error, UnstorableValueError):
        return f"column {error.column!r}: {error.value} cannot be stored: {error.rule}"
    if isinstance(error, RecordRefusedError):
        return error.reason
    if isinstance(error, RecordTooLargeError):
        return f"its record has {error.record_bytes} bytes: {error.limit}"
    return str(error)


@dataclass(frozen=True)
class BadRow:
    """Equal rows of a batch that are left out of every output.

    Attributes:
        identity: theirs.
        occurrences: how many of them are left out.
        output: the first that refused one.
        reason: what it said.
        sqlstate: PostgreSQL's code; '' where it was not asked.
        row: the row as JSON.
        equal_rows: how many of them the batch has in all; None where that was not counted.
        fingerprint: theirs; None where it was not asked for.
    """

    identity: bytes
    occurrences: int
    output: str
    reason: str
    sqlstate: str = ""
    row: str = "{}"
    equal_rows: int | None = None
    fingerprint: int | None = None

    @property
    def all_of_them(self) -> bool:
        """True where no equal row stays in the batch."""
        return self.occurrences == self.equal_rows

    def __str__(self) -> str:
        code = f" [{self.sqlstate}]" if self.sqlstate else ""
        times = f"{self.occurrences} times " if self.occurrences > 1 else ""
        return f"{times}{self.row}, refused by {self.output}: {self.reason}{code}"


@dataclass(frozen=True)
class LookedUpRow:
    """What the batch itself says of equal rows.

    Attributes:
        fingerprint: theirs.
        identity: theirs.
        equal_rows: how many there are.
        row: the row as JSON.
    """

    fingerprint: int
    identity: bytes
    equal_rows: int
    row: str


class BadRows(Mapping[bytes, BadRow]):
    """The bad rows of one batch by their identity. Never changed: `with_refused` makes others.

    Args:
        rows: each identity once.
    """

    def __init__(self, rows: Iterable[BadRow] = ()) -> None:
        self._rows = {row.identity: row for row in rows}

    def __getitem__(self, identity: bytes) -> BadRow:
        return self._rows[identity]

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def occurrences(self) -> int:
        """How many rows are left out."""
        return sum(row.occurrences for row in self.values())

    def with_refused(self, lanes: Iterable[Iterable[RefusedRow]]) -> BadRows:
        """These and more: of rows in which these are left out already.

        Args:
            lanes: what was refused in each; there a row may stand several times, for several reasons, and counts once.
                Jobs number rows in ways of their own, so of equal rows that several lanes refuse, as many are bad as
                the lane says that refuses most.
        """
        first: dict[bytes, RefusedRow] = {}
        bad: dict[bytes, int] = {}
        for refused in lanes:
            numbers: dict[bytes, set[int]] = {}
            for row in refused:
                numbers.setdefault(row.identity, set()).add(row.number)
                first.setdefault(row.identity, row)
            for identity, found in numbers.items():
                bad[identity] = max(len(found), bad.get(identity, 0))
        more = dict(self._rows)
        for identity, row in first.items():
            known = more.get(identity) or BadRow(identity, 0, row.output, row.reason, row.sqlstate)
            more[identity] = replace(known, occurrences=known.occurrences + bad[identity])
        return BadRows(more.values())

    def described(self, looked_up: Iterable[LookedUpRow]) -> BadRows:
        """The same rows with what the batch says of them."""
        by_identity = {found.identity: found for found in looked_up}
        return BadRows(
            replace(row, equal_rows=found.equal_rows, row=found.row, fingerprint=found.fingerprint)
            if (found := by_identity.get(row.identity))
            else row
            for row in self.values()
        )


#: Rows, bytes of an identity, and bytes of the rows themselves.
_SIZES: Final = struct.Struct("!qqq")
_NUMBER: Final = np.dtype(np.int64)


@dataclass(frozen=True)
class RowNames:
    """The names of some rows, in order.

    Attributes:
        identities: of each row its identity or its fingerprint, see `row_identity`; all of one length.
        numbers: of each what tells it from equal rows, see `RefusedRow`; native integers of 64 bits.
        wins: of each a byte, 0 where another row of its key supersedes it.
    """

    identities: bytes
    numbers: bytes
    wins: bytes

    @classmethod
    def of(cls, batch: Any) -> RowNames:
        """The names of the rows of an Arrow batch that has the columns of `row_identity`."""
        numbers = batch.column(NUMBER).to_numpy(zero_copy_only=False)
        wins = batch.column(WINS).to_numpy(zero_copy_only=False)
        return cls(_fixed(batch.column(IDENTITY)), numbers.tobytes(), wins.tobytes())

    def __len__(self) -> int:
        return len(self.wins)

    def __getitem__(self, row: int) -> tuple[bytes, int]:
        """Identity and number of a row."""
        identity = self.identities[row * self._width : (row + 1) * self._width]
        return identity, int(np.frombuffer(self.numbers, _NUMBER)[row])

    def between(self, start: int, stop: int) -> RowNames:
        """Those of the rows from ``start`` to below ``stop``."""
        return RowNames(
            self.identities[start * self._width : stop * self._width],
            self.numbers[start * _NUMBER.itemsize : stop * _NUMBER.itemsize],
            self.wins[start:stop],
        )

    def only(self, rows: Sequence[int]) -> RowNames:
        """Those of some rows."""
        parts = [self.between(row, row + 1) for row in rows]
        return RowNames(
            b"".join(part.identities for part in parts),
            b"".join(part.numbers for part in parts),
            b"".join(part.wins for part in parts),
        )

    @property
    def all_win(self) -> bool:
        """True where no row is superseded."""
        return 0 not in self.wins

    @property
    def winners(self) -> list[int]:
        """The places of those that are not."""
        return [row for row, wins in enumerate(self.wins) if wins]

    def packed(self, rows: bytes) -> bytes:
        """The names and their rows, as `unpack` reads them."""
        sizes = _SIZES.pack(len(self), self._width, len(rows))
        return b"".join((sizes, self.identities, self.numbers, self.wins, rows))

    @classmethod
    def unpack(cls, content: memoryview) -> Iterator[tuple[RowNames, bytes]]:
        """The names in the content, which is what `packed` has made once or several times, each with its rows."""
        at = 0
        while at < len(content):
            count, width, row_bytes = _SIZES.unpack_from(content, at)
            lengths = (_SIZES.size, count * width, count * _NUMBER.itemsize, count, row_bytes)
            ends = [at + int(end) for end in np.cumsum(lengths)]
            identities, numbers, wins, rows = (bytes(content[begin:end]) for begin, end in pairwise(ends))
            yield cls(identities, numbers, wins), rows
            at = ends[-1]

    @property
    def _width(self) -> int:
        """Bytes of an identity."""
        return len(self.identities) // max(len(self), 1)


def fingerprint_bytes(fingerprint: int) -> bytes:
    """A fingerprint as `RowNames` has it."""
    return fingerprint.to_bytes(_NUMBER.itemsize, sys.byteorder, signed=True)


def fingerprint_of(name: bytes) -> int:
    """The other way."""
    return int.from_bytes(name, sys.byteorder, signed=True)


def _fixed(column: Any) -> bytes:
    """The values of a column, each with the same number of bytes."""
    if not pa.types.is_binary(column.type) and not pa.types.is_large_binary(column.type):
        return bytes(column.to_numpy(zero_copy_only=False).tobytes())
    layout = binary_layout(column)
    begin = int(layout.starts[0]) if len(column) else 0
    return bytes(layout.data[begin : begin + len(column) * IDENTITY_BYTES].tobytes())


Refusal = TypeVar("Refusal")


def find_refused(count: int, attempt: Callable[[int, int], Refusal | None], *, most: int) -> list[tuple[int, Refusal]]:
    """Try all rows, halves of what is refused, and so on; each row that is taken is kept once.

    One bad row among n costs at most 3n rows of tries: those of the whole, of its halves, and of the halves on the way
    to it.

    Args:
        count: the rows, numbered from 0.
        attempt: tries the rows from its first argument to below its second; None where all were taken and kept, else
            the refusal, and nothing of them was kept.
        most: look no further when more than so many are refused.

    Returns:
        The rows that are refused by themselves on top of those before them, in order, and why.
    """
    search = _Search(attempt, most)
    search.over(0, count, refused=False)
    return search.found


def try_again(
    refused: list[tuple[int, Refusal]], attempt: Callable[[int, int], Refusal | None]
) -> list[tuple[int, Refusal]]:
    """Try refused rows once more, each on top of all that were kept since, until no more of them is taken.

    A row may refer to one that came behind it.

    Args:
        refused: from `find_refused`.
        attempt: the same.
    """
    while refused:
        again = ((row, attempt(row, row + 1)) for row, _ in refused)
        still = [(row, refusal) for row, refusal in again if refusal is not None]
        if len(still) == len(refused):
            return still
        refused = still
    return refused


class _Search(Generic[Refusal]):
    def __init__(self, attempt: Callable[[int, int], Refusal | None], most: int) -> None:
        self._attempt = attempt
        self._most = most
        self.found: list[tuple[int, Refusal]] = []

    def over(self, start: int, stop: int, *, refused: bool) -> bool:
        """Search in a range.

        Args:
            start: its first row.
            stop: the row behind its last.
            refused: the range is known to be refused, on top of what is kept: it need not be tried as a whole.

        Returns:
            True where all of it was kept.
        """
        if start == stop or len(self.found) > self._most:
            return True
        single = stop - start == 1
        # One row alone is always tried: the refusal of a range that it was a part of may name another.
        if single or not refused:
            refusal = self._attempt(start, stop)
            if refusal is None:
                return True
            if single:
                self.found.append((start, refusal))
                return False
        middle = (start + stop) // 2
        kept = self.over(start, middle, refused=False)
        # Where the first half was kept, the whole was refused for the second.
        self.over(middle, stop, refused=kept)
        return False
