"""The check of dead letters: whether the dead-letter topic has the letters that the dead-letter table has."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import text

from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.verification.claims import Claim
from spark_2pc_sink.verification.differences import Differences
from spark_2pc_sink.verification.evidence import Evidence
from spark_2pc_sink.verification.letter_comparison import (
    COMPARED,
    KEY,
    Letter,
    compared_letters,
    deleted_batches,
    letter_of_record,
    parsed,
)
from spark_2pc_sink.verification.reading import Bounds
from spark_2pc_sink.verification.report import Difference, LetterResult
from spark_2pc_sink.verification.table_pairs import layout_at
from spark_2pc_sink.verification.tally import Tally

_READABLE: Final = text("SELECT to_regclass(:table) IS NOT NULL AND has_table_privilege(to_regclass(:table), 'SELECT')")
_LETTERS: Final = "the dead letters"


@dataclass(frozen=True)
class _Place:
    """Where the letters of a batch are, as its claim has noted it."""

    topic: str
    table: str


class LetterCheck:
    """Compares the dead letters of the batches of a scope.

    Args:
        transactional_id: the sink.
        evidence: of both sides.
        differences: takes what differs.
    """

    def __init__(self, transactional_id: str, evidence: Evidence, differences: Differences) -> None:
        self._transactional_id = transactional_id
        self._evidence = evidence
        self._differences = differences
        self._claims = evidence.claims.claims
        self._cut = Tally(self._claims, evidence.gone)
        rows = [line.row for line in evidence.snapshot.lines] + ([] if evidence.row is None else [evidence.row])
        self._queries = frozenset(row.query_id for row in rows if row.query_id is not None)

    def run(self) -> tuple[LetterResult, ...]:
        """Compare, and say what differs; one result for each topic and table that could be compared."""
        places: dict[_Place, list[int]] = defaultdict(list)
        for index in sorted(self._evidence.chosen):
            place = self._place(index)
            if place is not None:
                places[place].append(index)
        return tuple(
            LetterResult(topic=place.topic, table=place.table, letters=compared)
            for place, indexes in places.items()
            if (compared := self._compare(place, indexes)) is not None
        )

    def _place(self, index: int) -> _Place | None:
        """Where the letters of a batch must be; None where they are in the table alone, or cannot be compared."""
        evidence, claim = self._evidence, self._claims[index]
        if not evidence.noted or claim.unknown or index in evidence.hidden:
            return None
        layout = evidence.noted[layout_at(evidence.noted, claim.decided_at)].layout
        topic, table = layout.dead_letter_topic, layout.dead_letter_table
        if topic is None or table is None or index in evidence.gone.get(topic, ()):
            return None
        return _Place(topic, table)

    def _compare(self, place: _Place, indexes: Sequence[int]) -> int | None:
        """How many letters were compared; None where they could not be, which is said."""
        why = self._why_not(place)
        if why:
            self._differences.skip(f"{_LETTERS} of topic {place.topic}", why)
            return None
        in_topic = self._in_topic(place.topic, indexes)
        in_table = self._in_table(place.table, indexes, in_topic)
        newest = len(self._claims) - 1
        deleted = deleted_batches(in_topic, in_table, newest=self._claims[newest].batch if newest in indexes else None)
        if deleted:
            batches = ", ".join(str(batch) for _, batch in deleted)
            why = "the table has none of them any more: a person may have deleted them"
            self._differences.skip(f"{_LETTERS} of batch {batches}", why)
        with self._differences.about(place.table):
            for difference in compared_letters(in_topic, in_table, deleted=frozenset(deleted)):
                self._differences.add(difference)
        return len(in_topic)

    def _why_not(self, place: _Place) -> str:
        if place.topic in self._evidence.logs.compacted:
            return "log compaction removes letters that later ones supersede"
        if not readable(self._evidence, place.table):
            return f"table {place.table} is not there, or this role may not read it"
        return ""

    def _in_topic(self, topic: str, indexes: Sequence[int]) -> list[Letter]:
        """The letters of some batches; a record in their ranges that is none is said."""
        letters = []
        wanted = frozenset(indexes)
        for at, offset, key, value in _records(self._evidence, self._bounds(topic, indexes), committed=True):
            index = self._cut.of(at).claim_at(offset)
            if index not in wanted:
                continue
            letter = letter_of_record(key, value, self._transactional_id, at, offset, queries=self._queries)
            if letter is None or letter.key[1] != self._claims[index].batch:
                self._stranger(self._claims[index], at, offset)
            else:
                letters.append(letter)
        return letters

    def _stranger(self, claim: Claim, at: TopicPartition, offset: int) -> None:
        self._differences.add(
            Difference(
                kind="stranger",
                text="this record is no dead letter of the batch",
                batch=claim.batch,
                topic=at.topic,
                partition=at.partition,
                offset=offset,
            )
        )

    def _bounds(self, topic: str, indexes: Sequence[int]) -> Bounds:
        found: dict[TopicPartition, tuple[int, int]] = {}
        for index in indexes:
            for at, (first, last) in self._claims[index].ranges.items():
                if at.topic == topic and at in self._evidence.ends:
                    low, high = found.get(at, (first, last))
                    found[at] = (min(low, first), max(high, last))
        starts, ends = self._evidence.logs.starts, self._evidence.ends
        return {at: (max(low, starts[at]), min(high + 1, ends[at])) for at, (low, high) in found.items()}

    def _in_table(self, table: str, indexes: Sequence[int], in_topic: Sequence[Letter]) -> list[Letter]:
        """The letters of the same batches: of the query that the row belongs to, and of those that letters name."""
        newest_query = self._evidence.claims.newest_query
        row = self._evidence.row
        own = None if row is None else row.query_id
        batches = {(own, self._claims[index].batch) for index in indexes if index >= newest_query}
        batches |= {letter.key[:2] for letter in in_topic}
        found = letters_of_table(self._evidence, table, self._transactional_id, {batch for _, batch in batches})
        return [letter for letter in found if letter.key[:2] in batches]


def readable(evidence: Evidence, table: str) -> bool:
    """Whether the table is there, and this role may read it: PostgreSQL's own refusal would end the transaction."""
    return evidence.snapshot.connection.scalar(_READABLE, {"table": table}) is True


def letters_of_table(
    evidence: Evidence, table: str, transactional_id: str, batches: Collection[int | None]
) -> list[Letter]:
    """The letters of a sink in some batches, of any query.

    Args:
        evidence: has the snapshot.
        table: as SQL spells it.
        transactional_id: the sink.
        batches: Spark's ids.
    """
    names = ", ".join((*KEY, *COMPARED[:-1]))
    # A colon in a name is no parameter.
    quoted = table.replace(":", r"\:")
    query = text(
        f'SELECT {names}, CAST("row" AS text) AS "row" FROM {quoted} '
        "WHERE transactional_id = :id AND batch_id = ANY(:batches)"
    )
    wanted = {"id": transactional_id, "batches": sorted(batch for batch in batches if batch is not None)}
    found = evidence.snapshot.connection.execute(query, wanted).mappings()
    return [_letter_of_row(row) for row in found]


def _letter_of_row(row: Mapping[Any, Any]) -> Letter:
    columns = {name: row[name] for name in COMPARED}
    return Letter((row["query_id"], row["batch_id"], row["identity"]), {**columns, "row": parsed(row["row"])})


def count_open_letters(evidence: Evidence, transactional_id: str, bounds: Bounds) -> tuple[int, int | None]:
    """How many letters an open transaction has, and how many of them the dead-letter table has.

    Args:
        evidence: of both sides.
        transactional_id: the sink.
        bounds: of the open transaction, in topics of dead letters.

    Returns:
        The second is None where the table cannot be read.
    """
    letters = [
        letter_of_record(key, value, transactional_id, at, offset)
        for at, offset, key, value in _records(evidence, bounds, committed=False)
    ]
    layout = evidence.layout
    table = None if layout is None else layout.dead_letter_table
    if not letters:
        return 0, 0
    if table is None or not readable(evidence, table):
        return len(letters), None
    known = [letter for letter in letters if letter is not None]
    in_table = letters_of_table(evidence, table, transactional_id, {letter.key[1] for letter in known})
    keys = {letter.key for letter in in_table}
    return len(letters), sum(letter.key in keys for letter in known)


def _records(evidence: Evidence, bounds: Bounds, *, committed: bool) -> Any:
    """Partition, offset, key and value of each record."""
    for at, messages in evidence.reader.read(bounds, committed=committed):
        for message in messages:
            yield at, message.offset() or 0, message.key(), message.value()
