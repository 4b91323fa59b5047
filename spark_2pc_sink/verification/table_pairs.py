"""Table pairs: of each table of a sink with several outputs, the topics whose records tell its rows.

Pure. A table and a topic that get the same rows of the batch are a pair: the records of the one say what the rows of
the other do. Which outputs the sink had when a batch was decided, its claims say: an output may have been added later,
or its topic may have another name now.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Final

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options.layout import SinkLayout
from spark_2pc_sink.options.names import TableName
from spark_2pc_sink.verification.claims import Claims
from spark_2pc_sink.verification.record_sources import RecordSources
from spark_2pc_sink.verification.report import Refusal
from spark_2pc_sink.verification.target import GivenTarget

#: What a lane's layout says of its records; the rest is about its rows.
_OF_RECORDS: Final = (
    *("topic", "key", "value", "headers", "partition", "key_format", "value_format"),
    *("upsert_superseded", "tombstone_when", "records"),
)


#: What to do where a table's rows are told by no topic that is known.
NO_TOPIC: Final = "name a topic that has its records, with --table TABLE --topic TOPIC"


@dataclass(frozen=True)
class NotedLayout:
    """The layout that a claim has noted.

    Attributes:
        at: when, by the database's clock, like the times of decisions.
        layout: of the sink from then on.
    """

    at: datetime
    layout: SinkLayout


@dataclass(frozen=True)
class TablePair:
    """A table, and where its rows are told.

    Attributes:
        layout: of the lane of the table, with the records that tell its rows; without records where none do. None where
            the sink has noted nothing.
        why: why no topic tells its rows; '' where one does.
        topics: by index of a claim, the topics that tell its rows: none where it did not write the table, and None
            where it did and no topic tells what.
        before: the same of what is older than all claims.
        unordered: records of a key are in no order within a batch.
    """

    layout: SinkLayout | None
    why: str = ""
    topics: tuple[frozenset[str] | None, ...] = ()
    before: frozenset[str] | None = None
    unordered: bool = False

    @property
    def table(self) -> str:
        """As the sink spells it."""
        return "" if self.layout is None else str(self.layout.table)

    @property
    def all_topics(self) -> frozenset[str]:
        """Those of all batches."""
        return frozenset[str]().union(*(found for found in (self.before, *self.topics) if found))

    @property
    def untold(self) -> tuple[int, ...]:
        """Indexes of the claims that wrote the table, and of whose rows no topic tells."""
        return tuple(index for index, found in enumerate(self.topics) if found is None)

    def tells(self, claim: int, topic: str) -> bool:
        """Whether records of a topic tell rows of the table.

        Args:
            claim: index of the claim that they are of, or come behind; -1 before all.
            topic: where they are.
        """
        return topic in ((self.before if claim < 0 else self.topics[claim]) or ())


@dataclass(frozen=True)
class _Told:
    """The lane of a table as one layout has it, see `TablePair`."""

    layout: SinkLayout
    topics: frozenset[str] | None = None
    why: str = ""
    unordered: bool = False


def table_pairs(noted: Sequence[NotedLayout], claims: Claims, *, topic: str | None = None) -> tuple[TablePair, ...]:
    """The tables of the newest layout, each with the topics that tell its rows.

    Args:
        noted: the layouts of the sink's claims, the oldest first.
        claims: the batches that the history knows.
        topic: the one that tells the rows, as a person says; None to find it.
    """
    named = {each.topic for one in noted for each in one.layout.each if each.records}
    by_rows = frozenset(claims.topics - named - letter_topics(noted))
    newest = noted[-1].layout
    return tuple(_pair(lane, noted, claims, by_rows, topic) for lane in newest.each if lane.table is not None)


def foreseen_refusals(layout: SinkLayout) -> dict[str, Refusal]:
    """The tables of a sink that a comparison would be inconclusive about, as far as its options tell, and why.

    Args:
        layout: of the sink, before its first batch.
    """
    found = {}
    for pair in table_pairs((NotedLayout(datetime.now(timezone.utc), layout),), Claims()):
        target = GivenTarget().completed(pair.layout, unordered=pair.unordered)
        refusal = Refusal(pair.why, NO_TOPIC) if pair.why else target.unforeseen or target.untold()
        if refusal is not None:
            found[pair.table] = refusal
    return found


def letter_topics(noted: Sequence[NotedLayout]) -> frozenset[str]:
    """The topics that layouts name for dead letters."""
    return frozenset(each.layout.dead_letter_topic for each in noted if each.layout.dead_letter_topic is not None)


def _pair(
    lane: SinkLayout, noted: Sequence[NotedLayout], claims: Claims, by_rows: frozenset[str], topic: str | None
) -> TablePair:
    newest = noted[-1].layout
    if topic is not None:
        only, said = frozenset({topic}), _said(lane, newest, topic)
        return TablePair(said.layout, "", (only,) * len(claims.claims), only, said.unordered)
    now = _told(lane, newest, by_rows)
    if now.topics is None:
        return TablePair(now.layout, now.why)
    told = [*(_earlier(lane, each.layout, newest, by_rows) for each in noted[:-1]), now.topics]
    of_claims = tuple(told[layout_at(noted, claim.decided_at)] for claim in claims.claims)
    return TablePair(now.layout, "", of_claims, told[0], now.unordered)


def layout_at(noted: Sequence[NotedLayout], decided_at: datetime | None) -> int:
    """Index of the layout under which a batch was decided; the oldest for what is older than all."""
    if decided_at is None:
        return len(noted) - 1
    return max(sum(each.at <= decided_at for each in noted) - 1, 0)


def _earlier(
    lane: SinkLayout, layout: SinkLayout, newest: SinkLayout, by_rows: frozenset[str]
) -> frozenset[str] | None:
    """What an earlier layout says of the table; no topic where it does not have the table."""
    same = _of_table(layout, str(lane.table))
    if same is not None:
        return _told(same, layout, by_rows).topics
    # A table that the sink does not write any more may be this one, under the name that it had: then it has their rows.
    replaced = any(each.table and _of_table(newest, each.table) is None for each in layout.each)
    return None if replaced else frozenset()


def _of_table(layout: SinkLayout, table: str) -> SinkLayout | None:
    """The lane of a table; None where the layout has no such table."""
    return next((each for each in layout.each if each.table and same_table(each.table, table)), None)


def _told(lane: SinkLayout, layout: SinkLayout, by_rows: frozenset[str]) -> _Told:
    """The topic that tells most of the rows of a lane's table."""
    alone = replace(lane, records=False)
    others = [each for each in layout.each if each.records]
    same = [each for each in others if (each.rows, each.where) == (lane.rows, lane.where)]
    names = Counter(each.topic for each in others)
    if not same:
        return _Told(alone, why=_no_topic(lane))
    if len(others) > 1 and (None in names or by_rows):
        return _Told(alone, why="rows name their topics, so no topic says of which output a record is")
    fit = [each for each in same if names[each.topic] == 1]
    if not fit:
        why = f"several outputs write topic {same[0].topic}, and no record says of which it is"
        return _Told(alone, why=why)
    # A tombstone has no value, so it tells nothing of a row that the table keeps.
    whole = [each for each in fit if each.tombstone_when in (None, lane.delete_when)]
    if not whole:
        has = f"tombstone_when={fit[0].tombstone_when!r}, and the table delete_when={lane.delete_when!r}"
        return _Told(alone, why=f"topic {fit[0].topic} has {has}: a tombstone tells nothing of a row that is kept")
    best = max(whole, key=lambda each: _rank(lane, each))
    own = frozenset() if best.topic is None else frozenset({best.topic})
    return _Told(_joined(lane, best), own | by_rows, unordered=best is not lane)


def _no_topic(lane: SinkLayout) -> str:
    of_lane = " and ".join(f"{name}={value!r}" for name in ("rows", "where") if (value := getattr(lane, name)))
    return f"no topic has the records of its rows: none has {of_lane or 'all rows of the batch'}"


def _rank(lane: SinkLayout, records: SinkLayout) -> tuple[bool, int, bool]:
    """How well a topic tells of a table: its deletions, its columns, and the order of its rows."""
    deletions = lane.delete_when is None or records.tombstone_when is not None
    return deletions, RecordSources(_joined(lane, records)).breadth, records is lane


def _joined(lane: SinkLayout, records: SinkLayout) -> SinkLayout:
    return replace(lane, **{name: getattr(records, name) for name in _OF_RECORDS})


def _said(lane: SinkLayout, layout: SinkLayout, topic: str) -> _Told:
    """The lane with the records of a topic that a person has named."""
    found = [each for each in layout.each if each.records and each.topic == topic]
    best = max(found, key=lambda each: _rank(lane, each)) if found else SinkLayout(topic=topic)
    return _Told(_joined(lane, best), unordered=best is not lane)


def same_table(one: str, other: str) -> bool:
    """Whether two names are of one table, as far as they tell: one without a schema may be in any."""
    first, second = TableName.parse(one), TableName.parse(other)
    return first.name == second.name and (first.schema == second.schema or None in (first.schema, second.schema))


def chosen_pair(pairs: Sequence[TablePair], table: str) -> TablePair:
    """The pair of a table that a person has named.

    Raises:
        ConfigurationError: the sink does not write it.
    """
    for pair in pairs:
        if same_table(pair.table, table):
            return pair
    tables = ", ".join(pair.table for pair in pairs) or "none"
    raise ConfigurationError(
        option="table",
        value=table,
        rule=f"it is one of the tables of a sink with several outputs, and they are: {tables}",
        remedy="name one of these, or leave it out to compare all",
    )
