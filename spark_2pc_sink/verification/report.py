"""The verification report: whether both sides agree, and the differences, as fields for programs and as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Literal

from spark_2pc_sink.plural import counted

#: same: everything compared is equal. different: something is not. inconclusive: no difference was found, but too much
#: could not be compared to rely on it.
Verdict = Literal["same", "different", "inconclusive"]

Side = Literal["kafka", "table"]

#: Kinds of differences, explained in docs/verify.md.
_OfTable = Literal["missing_in_kafka", "missing_in_table", "differing", "twice", "row_count"]
_OfBatch = Literal["batch_count", "digest", "offsets", "stranger", "gap", "topic_remade", "topic_deleted", "truncated"]
DifferenceKind = Literal[_OfTable, _OfBatch]

#: What each kind means, for people.
_HEADLINES: Final[Mapping[DifferenceKind, str]] = {
    "missing_in_kafka": "rows without a record in Kafka",
    "missing_in_table": "records without a row in the table",
    "differing": "rows that differ from the record of their key",
    "twice": "duplicate records or rows on one side",
    "row_count": "tables whose number of rows differs from what their batches wrote",
    "batch_count": "batches whose number of records differs from what they wrote",
    "digest": "batches whose records differ from what they wrote",
    "offsets": "offset ranges of batches that do not begin and end with a record",
    "stranger": "foreign records inside a batch's offset range",
    "gap": "records that belong to no batch, or batches missing from the history",
    "topic_remade": "batches whose topic was deleted and created again",
    "topic_deleted": "batches whose topic was deleted",
    "truncated": "batches whose records the log has lost in part",
}

#: What the share of an open transaction's records that have rows suggests.
_ADVICE: Final[Mapping[str, str]] = {
    "all": "the database has decided it; commit it in Kafka",
    "none": "the database has not decided it; abort it in Kafka",
    "some": "neither commit nor abort makes both sides equal",
    "no_records": "commit and abort have the same effect",
    "unknown": "compare its records with the table",
}


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One difference between the two sides, or between a side and the history. None means "not known"."""

    #: kind, text: for programs, and for people: actual and expected state.
    kind: DifferenceKind
    text: str
    #: For a sink with several outputs, the table that was compared.
    table: str | None = None
    #: Key of the row or record, such as ``order_id=7``.
    key: str | None = None
    #: Spark's batch id.
    batch: int | None = None
    #: topic, partition, offset, last_offset: the record, or the first and the last of several.
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    last_offset: int | None = None
    #: For ``twice``, the side that has the duplicate.
    side: Side | None = None
    #: record, row: columns of each by name, the record's as the table would show them.
    record: Mapping[str, Any] | None = None
    row: Mapping[str, Any] | None = None

    def __str__(self) -> str:
        place = None if self.topic is None or self.partition is None else f"{self.topic}-{self.partition}"
        if place is not None and self.offset is not None:
            upto = "" if self.last_offset in (None, self.offset) else f" to {self.last_offset}"
            place = f"{place} at offset {self.offset}{upto}"
        table = None if self.table is None else f"table {self.table}"
        batch = None if self.batch is None else f"batch {self.batch}"
        named = [part for part in (table, self.key, batch, place) if part is not None]
        return f"{', '.join(named)}: {self.text}" if named else self.text


@dataclass(frozen=True)
class NotChecked:
    """A part that was not compared; with a ``remedy``, its absence makes the verdict inconclusive."""

    what: str
    why: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.what}: {self.why}"


@dataclass
class NotComparableError(Exception):
    """A table cannot be compared with records, or a record cannot be a row of it; and what to do."""

    why: str
    remedy: str


@dataclass(frozen=True, kw_only=True)
class BatchResult:
    """One batch of the history against the topics."""

    batch: int | None
    #: Number of its history line.
    decision: int
    #: records, found: number of records in the history, and in its ranges of the topics; None if they were not read.
    records: int
    found: int | None = None
    #: None if the digest was not compared.
    digest_same: bool | None = None
    #: Everything that was compared agrees with the history.
    same: bool = True
    #: False if nothing was compared, see `VerifyReport.not_checked`.
    checked: bool = True


@dataclass(frozen=True, kw_only=True)
class TableResult:
    """One table against the topics with the records of its rows; ``rows`` is None if they were not compared."""

    table: str
    topics: tuple[str, ...] = ()
    rows: int | None = None
    columns: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.rows is None:
            return f"table {self.table}: not compared"
        rows = counted(self.rows, "row")
        return f"table {self.table}: compared {rows} with the records of topic {', '.join(self.topics)}"


@dataclass(frozen=True, kw_only=True)
class DeadLetterResult:
    """A topic's dead letters against those of the dead-letter table; ``letters`` is the number in the topic."""

    topic: str
    table: str
    letters: int

    def __str__(self) -> str:
        return f"dead letters: compared {self.letters} of topic {self.topic} with table {self.table}"


@dataclass(frozen=True, kw_only=True)
class OpenTable:
    """One table against the open transaction: how many of its records have a row, None if not compared."""

    table: str
    topics: tuple[str, ...] = ()
    records: int = 0
    in_table: int | None = None

    def __str__(self) -> str:
        if self.in_table is None:
            return f"table {self.table}: not compared"
        records = f"the {counted(self.records, 'record')} of {', '.join(self.topics)}"
        return f"table {self.table}: has rows for {self.in_table} of {records}"


@dataclass(frozen=True, kw_only=True)
class OpenTransactionRows:
    """The open transaction's records against the table: what a person needs to commit or abort it."""

    #: State of the transaction in Kafka, such as ``Ongoing``.
    state: str
    #: Number of records that were compared; if none could be, number of records written.
    records: int
    #: Number of them that have rows in the table, None if unknown. If several tables have rows of a topic's records,
    #: the lowest number.
    in_table: int | None
    #: First and last offset of its records, by 'topic-partition'.
    partitions: Mapping[str, tuple[int, int]] = field(default_factory=dict, hash=False)
    #: For a sink with several outputs, one for each table to be compared.
    tables: tuple[OpenTable, ...] = ()

    @property
    def share(self) -> Literal["all", "none", "some", "no_records", "unknown"]:
        if not self.records:
            return "no_records"
        if self.in_table is None:
            return "unknown"
        if self.in_table == self.records:
            return "all"
        return "some" if self.in_table or any(each.in_table for each in self.tables) else "none"

    def __str__(self) -> str:
        found = "an unknown number" if self.in_table is None else str(self.in_table)
        where = "every table that gets them" if self.tables else "the table"
        records = counted(self.records, "record")
        return f"{self.state}, {records}, {found} of them with a row in {where}: {_ADVICE[self.share]}"


@dataclass(frozen=True, kw_only=True)
class VerifyReport:
    """What a verification compared, and what differs. Programs read the fields; ``str(report)`` is for people.

    Attributes:
        transactional_id: the sink's id.
        verdict: see `Verdict`.
        known: False if no state row has this id: the sink has never run, or this is the wrong database.
        scope: what was to be compared, such as ``all`` or ``since batch 5``.
        up_to: the newest batch that was compared; later ones are neither missing nor unexpected.
        records: number of the topics' records that were compared.
        rows: number of rows of all tables that were compared; None if no table was.
        columns: the columns that were compared, by their names in the table; for several tables see ``tables``.
        tables: for a sink with several outputs, one for each table to be compared.
        letters: one for each dead-letter topic that was compared with the dead-letter table.
        batches: one for each batch of the scope in the history, the oldest first.
        counts: number of differences of each kind found.
        differences: the first of each kind.
        not_checked: parts that were not compared.
        open_transaction: result for the open transaction; None if it was not requested, or there is none.
        written: paths of the files made by ``write_missing``, as text.
        seconds: duration.
    """

    transactional_id: str
    verdict: Verdict
    known: bool = True
    scope: str = "all"
    up_to: int | None = None
    records: int = 0
    rows: int | None = None
    columns: tuple[str, ...] = ()
    tables: tuple[TableResult, ...] = ()
    letters: tuple[DeadLetterResult, ...] = ()
    batches: tuple[BatchResult, ...] = ()
    counts: Mapping[DifferenceKind, int] = field(default_factory=dict, hash=False)
    differences: tuple[Difference, ...] = ()
    not_checked: tuple[NotChecked, ...] = ()
    open_transaction: OpenTransactionRows | None = None
    written: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def same(self) -> bool:
        return self.verdict == "same"

    @property
    def reason(self) -> NotChecked | None:
        """The first part that makes the verdict inconclusive; None for another verdict."""
        decisive = (part for part in self.not_checked if part.remedy and self.verdict == "inconclusive")
        return next(decisive, None)

    def as_json(self) -> dict[str, Any]:
        """The fields as JSON, with ``same`` next to the verdict and ``share`` in the open transaction."""
        found = {**asdict(self), "same": self.same}
        if self.open_transaction is not None:
            found["open_transaction"]["share"] = self.open_transaction.share
        return found

    def __str__(self) -> str:
        rows = "no table" if self.rows is None else counted(self.rows, "row")
        upto = "" if self.up_to is None else f" up to batch {self.up_to}"
        batches = f"{counted(len(self.batches), 'batch')} ({self.scope}{upto})"
        compared = f"(compared {counted(self.records, 'record')} with {rows}, {batches})"
        reason, verdict = self.reason, f"both sides are {'the same' if self.same else 'DIFFERENT'} {compared}"
        if not self.known:
            verdict = "NOT KNOWN, the state table has no row for this id"
        elif self.verdict == "inconclusive":
            verdict = f"INCONCLUSIVE, {reason or 'too much could not be compared'} {compared}"
        lines = [f"{self.transactional_id}: {verdict}"]
        if reason is not None:
            lines.append(f"  fix: {reason.remedy}")
        for kind, count in self.counts.items():
            named = [difference for difference in self.differences if difference.kind == kind]
            lines += [f"  {kind} ({count}): {_HEADLINES[kind]}", *(f"    - {difference}" for difference in named)]
            if len(named) < count:
                lines.append(f"    … and {count - len(named)} more")
        if self.open_transaction is not None:
            lines.append(f"  open transaction: {self.open_transaction}")
            lines += [f"    - {table}" for table in self.open_transaction.tables]
        lines += [f"  {part}" for part in (*self.tables, *self.letters)]
        lines += [f"  not checked: {part}" for part in self.not_checked if part is not reason]
        return "\n".join([*lines, *(f"  written: {path}" for path in self.written)])


class Differences:
    """Collects the results of the checks: counts all, and keeps the first ``kept_max`` of each kind and table."""

    def __init__(self, kept_max: int) -> None:
        self.kept_max = kept_max
        self.counts: Counter[DifferenceKind] = Counter()
        self.kept: list[Difference] = []
        self.not_checked: list[NotChecked] = []
        self._table: str | None = None
        self._counts: Counter[tuple[str | None, DifferenceKind]] = Counter()

    @contextmanager
    def about(self, table: str | None) -> Iterator[None]:
        """Name a table in all findings of the block; None if the sink has only one."""
        self._table = table
        try:
            yield
        finally:
            self._table = None

    def add(self, difference: Difference) -> None:
        if self.wanted(difference.kind):
            self.kept.append(replace(difference, table=self._table))
        self.count(difference.kind, 1)

    def wanted(self, kind: DifferenceKind) -> int:
        """How many more of this kind would be kept."""
        return max(self.kept_max - self._counts[self._table, kind], 0)

    def count(self, kind: DifferenceKind, more: int) -> None:
        """Count differences that are not kept."""
        if more:
            self.counts[kind] += more
            self._counts[self._table, kind] += more

    def fields(self) -> dict[str, Any]:
        kept, not_checked = tuple(self.kept), tuple(self.not_checked)
        return {"counts": dict(self.counts), "differences": kept, "not_checked": not_checked}

    def skip(self, what: str, why: str, remedy: str = "") -> None:
        part = NotChecked(what if self._table is None else f"{what} (table {self._table})", why, remedy)
        if part not in self.not_checked:
            self.not_checked.append(part)

    def skip_table(self, error: NotComparableError) -> None:
        what = "the table" if self._table is None else f"table {self._table}"
        self.not_checked.append(NotChecked(what, error.why, error.remedy))
