"""Dead letters: compare those in the dead-letter topic with those in the dead-letter table, as multisets.

The format of a dead letter is deliberately written a second time here, like that of a digest: a bug in the code that
writes must not be repeated by the code that checks.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.plural import counted
from spark_2pc_sink.verification.history import Ranges, Tally
from spark_2pc_sink.verification.report import DeadLetterResult, Difference
from spark_2pc_sink.verification.table_pairs import layout_at

if TYPE_CHECKING:
    from spark_2pc_sink.verification.verification import Evidence

#: The columns that are compared, of dead letters with the same query, batch and identity.
COMPARED: Final = ("occurrences", "output", "reason", "sqlstate", "row")
DeadLetterKey: TypeAlias = tuple[str, int, str]


@dataclass(frozen=True)
class DeadLetter:
    """A dead letter on one side; ``columns`` has the values of `COMPARED`, without a row too large for the topic."""

    key: DeadLetterKey
    columns: Mapping[str, Any] = field(hash=False)
    partition: TopicPartition | None = None
    offset: int | None = None

    def shown(self, names: Iterable[str] = COMPARED) -> dict[str, Any]:
        shown = {name: self.columns[name] for name in names if name in self.columns}
        return dict(json.loads(json.dumps(shown, default=str)))

    def difference(self, **fields: Any) -> Difference:
        place = {} if self.partition is None else asdict(self.partition)
        return Difference(key=f"identity={self.key[2]}", batch=self.key[1], offset=self.offset, **place, **fields)


def check_dead_letters(evidence: Evidence) -> tuple[DeadLetterResult, ...]:
    """Compare the dead letters of the batches of a scope; one result for each comparable topic and table."""
    places: dict[tuple[str, str], list[int]] = defaultdict(list)
    for index, claim in enumerate(evidence.claims.claims):
        if evidence.noted and claim.in_scope and not claim.unknown and not claim.hidden:
            layout = evidence.noted[layout_at(evidence.noted, claim.decided_at)].layout
            topic, table = layout.dead_letter_topic, layout.dead_letter_table
            if topic is not None and table is not None and topic not in claim.gone:
                places[topic, table].append(index)
    results = []
    for (topic, table), indexes in places.items():
        compacted = topic in evidence.logs.compacted
        if compacted or not _is_readable(evidence, table):
            unreadable = f"table {table} does not exist, or this role cannot read it"
            why = "log compaction removes dead letters that later ones supersede" if compacted else unreadable
            evidence.differences.skip(f"the dead letters of topic {topic}", why)
        else:
            letters = _compare(evidence, topic, table, indexes)
            results.append(DeadLetterResult(topic=topic, table=table, letters=letters))
    return tuple(results)


def _compare(evidence: Evidence, topic: str, table: str, indexes: Sequence[int]) -> int:
    """Compare the dead letters of some claims, and report the differences; the number in the topic."""
    claims, newest = evidence.claims.claims, len(evidence.claims.claims) - 1
    bounds = evidence.bounds_of((claims[index] for index in indexes), evidence.ends)
    bounds = {at: each for at, each in bounds.items() if at.topic == topic}
    cut, in_topic = Tally(claims), []
    for at, offset, letter in _in_topic(evidence, bounds):
        index = cut.of(at).claim_at(offset)
        batch = claims[index].batch
        if index in indexes and letter is not None and letter.key[1] == batch:
            in_topic.append(letter)
        elif index in indexes:
            why = "this record is not a dead letter of the batch"
            evidence.differences.add(Difference(kind="stranger", text=why, batch=batch, offset=offset, **asdict(at)))
    # The dead letters of the same batches: of the query that owns the row, and of those that letters name.
    own = None if evidence.row is None else evidence.row.query_id
    batches = {(own, claims[index].batch) for index in indexes if index >= evidence.claims.newest_query}
    batches |= {letter.key[:2] for letter in in_topic}
    found = _in_table(evidence, table, {batch for _, batch in batches})
    in_table = [letter for letter in found if letter.key[:2] in batches]
    # A person may have deleted those of a batch in the table, except the newest: the sink needs its letters.
    needed = claims[newest].batch if newest in indexes else None
    left = {letter.key[:2] for letter in in_table}
    deleted = sorted({letter.key[:2] for letter in in_topic if letter.key[1] != needed} - left)
    if deleted:
        names = ", ".join(str(batch) for _, batch in deleted)
        why = "the table has none of them any more; they may have been deleted on purpose"
        evidence.differences.skip(f"the dead letters of batch {names}", why)
    with evidence.differences.about(table):
        for difference in compared_dead_letters(in_topic, in_table, deleted=deleted):
            evidence.differences.add(difference)
    return len(in_topic)


def count_open_dead_letters(evidence: Evidence, bounds: Ranges) -> tuple[int, int | None]:
    """Numbers of an open transaction's dead letters, and of those in the dead-letter table; None if unreadable."""
    letters = [letter for _, _, letter in _in_topic(evidence, bounds, committed=False)]
    table = None if evidence.layout is None else evidence.layout.dead_letter_table
    if not letters:
        return 0, 0
    if table is None or not _is_readable(evidence, table):
        return len(letters), None
    known = [letter.key for letter in letters if letter is not None]
    keys = {letter.key for letter in _in_table(evidence, table, {batch for _, batch, _ in known})}
    return len(letters), sum(key in keys for key in known)


def _in_topic(
    evidence: Evidence, bounds: Ranges, *, committed: bool = True
) -> Iterator[tuple[TopicPartition, int, DeadLetter | None]]:
    """Partition, offset and dead letter of each record; None for a record that is not one of the sink."""
    name = evidence.request.options.transactional_id
    rows = [line.row for line in evidence.snapshot.lines] + ([] if evidence.row is None else [evidence.row])
    queries = {row.query_id for row in rows if row.query_id is not None}
    for at, messages in evidence.reader.read(bounds, committed=committed):
        for message in messages:
            offset = message.offset() or 0
            yield at, offset, dead_letter_of(message.key(), message.value(), name, at, offset, queries=queries)


def _is_readable(evidence: Evidence, table: str) -> bool:
    # PostgreSQL's own refusal would end the transaction.
    find = "SELECT has_table_privilege(to_regclass(%s), 'SELECT')"
    return evidence.snapshot.run(find, (table,)) == [(True,)]


def _in_table(evidence: Evidence, table: str, batches: Collection[int | None]) -> Iterator[DeadLetter]:
    """The dead letters of a sink in some batches, of any query."""
    # A percent sign in a name is not a parameter.
    quoted = table.replace("%", "%%")
    query = (
        f'SELECT query_id, batch_id, identity, {", ".join(COMPARED[:-1])}, "row"::text FROM {quoted} '
        "WHERE transactional_id = %s AND batch_id = ANY(%s)"
    )
    wanted = (evidence.request.options.transactional_id, sorted(batch for batch in batches if batch is not None))
    for query_id, batch_id, identity, *columns, row in evidence.snapshot.run(query, wanted):
        yield DeadLetter((query_id, batch_id, identity), dict(zip(COMPARED, [*columns, parsed(row)], strict=True)))


def dead_letter_of(
    key: bytes | None,
    value: bytes | None,
    transactional_id: str,
    partition: TopicPartition,
    offset: int,
    *,
    queries: Collection[str] = (),
) -> DeadLetter | None:
    """A record's dead letter; None if it is not one of this sink, or of an earlier id of it with these ``queries``."""
    try:
        decoded = parsed(value or b"")
        letter_key = (decoded["query_id"], decoded["batch_id"], decoded["identity"])
        columns = {name: decoded[name] for name in COMPARED}
        own = decoded["transactional_id"] == transactional_id or decoded["query_id"] in queries
        own = own and (key or b"").decode() == decoded["identity"]
    except (ValueError, TypeError, KeyError):
        return None
    if decoded.get("row_left_out"):
        del columns["row"]
    return DeadLetter(letter_key, columns, partition, offset) if own else None


def parsed(json_text: bytes | str) -> Any:
    """JSON with all digits of its numbers."""
    return json.loads(json_text, parse_float=Decimal)


def compared_dead_letters(
    in_topic: Sequence[DeadLetter], in_table: Iterable[DeadLetter], *, deleted: Collection[tuple[str, int]]
) -> Iterator[Difference]:
    """Differences in the dead letters of some batches; those of ``deleted`` ones may be gone from the table."""
    rows = {letter.key: letter for letter in in_table}
    counts = Counter(letter.key for letter in in_topic)
    seen: set[DeadLetterKey] = set()
    for letter in in_topic:
        row = rows.get(letter.key)
        if letter.key in seen:
            why = f"the topic has this dead letter {counted(counts[letter.key], 'time')}"
            yield letter.difference(kind="twice", text=why, side="kafka")
        elif row is None and letter.key[:2] not in deleted:
            why = "the topic has this dead letter, and the table does not"
            yield letter.difference(kind="missing_in_table", text=why, record=letter.shown())
        elif row is not None:
            names = [name for name, column in letter.columns.items() if column != row.columns[name]]
            why = f"the dead letter differs in {', '.join(names)}"
            if names:
                yield letter.difference(kind="differing", text=why, record=letter.shown(names), row=row.shown(names))
        seen.add(letter.key)
    for key, row in rows.items():
        if key not in seen:
            why = "the table has this dead letter, and the topic does not"
            yield row.difference(kind="missing_in_kafka", text=why, row=row.shown())
