"""Table pairs: for each table of a sink with several outputs, the topics whose records describe its rows.

A table and a topic that get the same rows of the batch are a pair: the records of one describe the rows of the other.
The claims show which outputs the sink had when a batch was decided: an output may have been added later, or its topic
may have another name now.
"""

from __future__ import annotations

from ast import literal_eval
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING, Final

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options.layout import SinkLayout
from spark_2pc_sink.options.names import TableName
from spark_2pc_sink.options.settings import refused
from spark_2pc_sink.plural import counted
from spark_2pc_sink.verification.columns import read_shape
from spark_2pc_sink.verification.history import Claims, HistoryBatch
from spark_2pc_sink.verification.report import Difference, NotComparableError
from spark_2pc_sink.verification.target import GivenTarget, RecordSources

if TYPE_CHECKING:
    from spark_2pc_sink.verification.verification import Evidence

#: Keys of a lane's layout that describe its records; the rest describe its rows.
_OF_RECORDS: Final = (
    "topic",
    "key",
    "value",
    "headers",
    "partition",
    "key_format",
    "value_format",
    "upsert_superseded",
    "tombstone_when",
    "records",
)
#: Prefix in the text of an output that is a table; its name follows.
_ROWS: Final = "Rows("


@dataclass(frozen=True)
class NotedLayout:
    """The layout that a claim has noted; it is valid from ``at`` on, by the database's clock."""

    at: datetime
    layout: SinkLayout


@dataclass(frozen=True)
class TablePair:
    #: Layout of the table's lane, with the records that describe its rows, or without records if none do. None if the
    #: sink has noted nothing.
    layout: SinkLayout | None
    #: Why no topic describes its rows; None if one does.
    refusal: NotComparableError | None = None
    #: The topics that describe its rows: in records older than all claims, and then for each claim. Empty if it did not
    #: write the table, and None if it did and no topic describes the rows.
    topics: tuple[frozenset[str] | None, ...] = (None,)
    #: Records of a key have no order within a batch.
    unordered: bool = False

    @property
    def table(self) -> str:
        return "" if self.layout is None else self.layout.table or ""

    @property
    def all_topics(self) -> frozenset[str]:
        return frozenset[str]().union(*(found for found in self.topics if found))

    def describes(self, claim: int, topic: str) -> bool:
        """Whether a topic's records describe rows of the table, for the claim with this index or after it, or -1."""
        return topic in (self.topics[claim + 1] or ())


def table_pairs(noted: Sequence[NotedLayout], claims: Claims, *, topic: str | None = None) -> tuple[TablePair, ...]:
    """The tables of the newest layout, each with the topics that describe its rows, or with the topic that is given."""
    named = {each.topic for one in noted for each in one.layout.each if each.records}
    by_rows = frozenset(claims.topics - named - dead_letter_topics(noted))
    newest = noted[-1].layout

    def pair(lane: SinkLayout) -> TablePair:
        if topic is not None:
            found = [each for each in newest.each if each.records and each.topic == topic]
            best = max(found, key=partial(_rank, lane)) if found else SinkLayout(topic=topic)
            only = (frozenset({topic}),) * (len(claims.claims) + 1)
            return TablePair(_joined(lane, best), topics=only, unordered=best is not lane)
        now = _pair_in_layout(lane, newest, by_rows)
        if now.refusal is not None:
            return now
        topics = [*(_earlier(lane, each.layout, newest, by_rows) for each in noted[:-1]), now.topics[0]]
        of_claims = (topics[layout_at(noted, claim.decided_at)] for claim in claims.claims)
        return replace(now, topics=(topics[0], *of_claims))

    return tuple(pair(lane) for lane in newest.each if lane.table is not None)


def expected_refusals(layout: SinkLayout) -> dict[str, NotComparableError]:
    """The tables of a sink whose comparison would be inconclusive, as far as its options show, and why."""
    found = {}
    for pair in table_pairs((NotedLayout(datetime.now(timezone.utc), layout),), Claims()):
        target = GivenTarget().completed(pair.layout, unordered=pair.unordered)
        if refusal := pair.refusal or target.refusal or target.lacking_columns():
            found[pair.table] = refusal
    return found


def dead_letter_topics(noted: Sequence[NotedLayout]) -> frozenset[str]:
    """The topics that have, or had, the sink's dead letters: their records are not of table rows."""
    return frozenset(each.layout.dead_letter_topic for each in noted if each.layout.dead_letter_topic is not None)


def layout_at(noted: Sequence[NotedLayout], decided_at: datetime | None) -> int:
    """Index of the layout under which a batch was decided; the oldest for earlier batches."""
    if decided_at is None:
        return len(noted) - 1
    return max(sum(each.at <= decided_at for each in noted) - 1, 0)


def same_table(one: str, other: str) -> bool:
    """Whether two names may be of one table: one without a schema may be in any."""
    first, second = TableName.parse(one), TableName.parse(other)
    return first.name == second.name and (first.schema == second.schema or None in (first.schema, second.schema))


def _earlier(
    lane: SinkLayout, layout: SinkLayout, newest: SinkLayout, by_rows: frozenset[str]
) -> frozenset[str] | None:
    """The topics that describe the table in an earlier layout; empty if the layout lacks it."""
    for each in layout.each:
        if each.table and same_table(each.table, str(lane.table)):
            return _pair_in_layout(each, layout, by_rows).topics[0]
    # A table that the sink no longer writes may be this one before a rename: its topics then have the rows.
    now = [each.table for each in newest.each if each.table]
    before = [each.table for each in layout.each if each.table]
    return frozenset() if all(any(same_table(old, new) for new in now) for old in before) else None


def _pair_in_layout(lane: SinkLayout, layout: SinkLayout, by_rows: frozenset[str]) -> TablePair:
    """The table of a lane with the topics that describe most of its rows while the sink has this layout."""
    others = [each for each in layout.each if each.records]
    same = [each for each in others if (each.rows, each.where) == (lane.rows, lane.where)]
    names = Counter(each.topic for each in others)
    fit = [each for each in same if names[each.topic] == 1]
    # A tombstone has no value, so it cannot describe a row that the table keeps.
    whole = [each for each in fit if each.tombstone_when in (None, lane.delete_when)]
    if not same:
        of_lane = " and ".join(f"{name}={value!r}" for name in ("rows", "where") if (value := getattr(lane, name)))
        why = f"no topic has the records of its rows ({of_lane or 'all rows of the batch'})"
    elif len(others) > 1 and (None in names or by_rows):
        why = "rows name their topics, so a topic does not show which output a record is of"
    elif not fit:
        why = f"several outputs write topic {same[0].topic}, and records do not show which output they are of"
    elif not whole:
        has = f"tombstone_when={fit[0].tombstone_when!r}, but the table has delete_when={lane.delete_when!r}"
        why = f"topic {fit[0].topic} has {has}, and a tombstone does not describe a row that is kept"
    else:
        best = max(whole, key=partial(_rank, lane))
        own = frozenset() if best.topic is None else frozenset({best.topic})
        return TablePair(_joined(lane, best), topics=(own | by_rows,), unordered=best is not lane)
    remedy = "name a topic that has its records: --table TABLE --topic TOPIC"
    return TablePair(replace(lane, records=False), NotComparableError(why, remedy))


def _rank(lane: SinkLayout, records: SinkLayout) -> tuple[bool, int, bool]:
    """How well a topic describes a table: its deletions, its columns, and the order of its rows."""
    breadth = RecordSources(_joined(lane, records)).breadth
    return lane.delete_when is None or records.tombstone_when is not None, breadth, records is lane


def _joined(lane: SinkLayout, records: SinkLayout) -> SinkLayout:
    return replace(lane, **{name: getattr(records, name) for name in _OF_RECORDS})


def chosen_pairs(evidence: Evidence) -> tuple[TablePair, ...]:
    """The tables to compare; all topics of a sink with one table have the records of its rows."""
    target, layout, claims = evidence.request.target, evidence.layout, evidence.claims
    topic = target.topic
    if topic is not None and topic not in evidence.logs.topic_ids and topic not in claims.topics:
        rule = "must be a topic that the sink writes"
        raise refused("topic", topic, rule, f"its topics are {', '.join(sorted(claims.topics)) or 'not known'}")
    of_rows = (claims.topics | evidence.logs.topic_ids.keys()) - dead_letter_topics(evidence.noted)
    topics = frozenset(of_rows if topic is None else {topic})
    alone = (TablePair(layout, topics=(topics,) * (len(claims.claims) + 1)),)
    if layout is None or (not layout.lanes and topic is None and not _has_replaced_its_table(evidence, layout)):
        return alone
    pairs = table_pairs(evidence.noted, claims, topic=topic)
    if not layout.lanes:
        return pairs or alone
    if target.table is not None:
        found = [pair for pair in pairs if same_table(pair.table, target.table)][:1]
        rule = f"must be one of the sink's tables: {', '.join(pair.table for pair in pairs) or 'none'}"
        if not found:
            raise refused("table", target.table, rule, "name one of these, or leave table out to compare all")
        return tuple(found)
    for name, value in vars(target).items() if len(pairs) > 1 else ():
        if value and name != "table":
            raise refused(name, value, "applies to one table, and the sink has several", "pass table (--table) too")
    return pairs


def _has_replaced_its_table(evidence: Evidence, layout: SinkLayout) -> bool:
    """Whether a sink of one table wrote another one earlier, which still exists, and was not only renamed."""
    if layout.table is None or not same_table(evidence.request.target.table or layout.table, layout.table):
        return False
    named = {lane.table for each in evidence.noted for lane in each.layout.each if lane.table is not None}
    others = [str(TableName.parse(table)) for table in named if not same_table(table, layout.table)]
    find = "SELECT EXISTS (SELECT FROM unnest(%s::text[]) AS n WHERE to_regclass(n) IS NOT NULL)"
    return evidence.snapshot.run(find, (others,)) == [(True,)]


def other_writers(evidence: Evidence, table: str) -> list[str]:
    """The other sinks of the state table that write a table too."""
    lanes = [(name, lane) for name, layout in sorted(evidence.others.items()) for lane in layout.each]
    return sorted({name for name, lane in lanes if lane.table is not None and same_table(lane.table, table)})


def count_rows(pair: TablePair, evidence: Evidence) -> None:
    """Compare the number of a table's rows with that of its batches; report it if neither describes the other."""
    mode = "append" if pair.layout is None else pair.layout.mode
    claims, request = evidence.claims.claims, evidence.request
    lacking = any(claim.unknown or _rows_of(claim, pair.table) is None for claim in claims)
    obstacles = {
        "the history was not requested": request.table_only,
        f"with mode={mode!r} a batch may write rows that already exist": mode != "append",
        "a row does not contain its batch": not request.scope.is_all,
        "the history does not reach back to the first batch": not evidence.claims.from_the_start,
        "the history does not have the number of rows per table for each batch": lacking,
        "another sink writes the table too": bool(other_writers(evidence, pair.table)),
    }
    why = next((why for why, holds in obstacles.items() if holds), "")
    try:
        with evidence.snapshot.driver.cursor() as cursor:
            table = None if why else read_shape(cursor, pair.table).table
    except ConfigurationError as error:
        table, why = None, error.rule
    if table is None:
        evidence.differences.skip("the number of its rows", why)
        return
    ((found,),) = evidence.snapshot.run(f"SELECT count(*) FROM {table}")
    wrote = sum(_rows_of(claim, pair.table) or 0 for claim in claims)
    if found != wrote:
        text = f"the table has {counted(found, 'row')}, and its batches wrote {wrote}"
        evidence.differences.add(Difference(kind="row_count", text=text))


def _rows_of(claim: HistoryBatch, table: str) -> int | None:
    """How many rows a batch wrote to a table; None if the history does not have it."""
    tables = {literal_eval(text[len(_ROWS) : -1]): count for text, count in claim.outputs.items() if _ROWS in text}
    # If records were resent, the line has only these.
    complete = sum(tables.values()) == claim.rows
    return sum(count for name, count in tables.items() if same_table(name, table)) if complete else None
