"""The comparison of records and rows as multisets: by fingerprints first, by hashes where those differ.

What differs is left in temporary tables of the snapshot's session, from which `spark_2pc_sink.verification.lone` names
it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from tempfile import SpooledTemporaryFile
from typing import Any, Final

from spark_2pc_sink.verification.side_sql import BUCKETS, SideSql
from spark_2pc_sink.verification.snapshot import Snapshot
from spark_2pc_sink.verification.staging import Staging, StagingSession

#: Of each bucket the number of hashes and their sum.
Fingerprints = Mapping[int, tuple[int, int]]

#: Hashes on their way from one session to another: above this they go through a file.
_SPOOLED_BYTES_MAX: Final = 8 * 1024 * 1024


@dataclass(frozen=True)
class Compared:
    """How far a comparison went.

    Attributes:
        rows: of the table that were compared.
        equal: nothing differs, and no temporary table was made.
        superseded: records of the scope that later records of their keys have replaced.
        late: records of the scope that were older, by the sink's order, than the row of an earlier batch.
    """

    rows: int
    equal: bool
    superseded: int = 0
    late: int = 0


class Comparison:
    """Compares what is staged with the table.

    Args:
        snapshot: sees the table.
        staging: has the records.
    """

    def __init__(self, snapshot: Snapshot, staging: Staging) -> None:
        self._snapshot = snapshot
        self._staging = staging

    @property
    def _sql(self) -> SideSql:
        return self._staging.sessions[0].sql

    def whole(self, table: Future[Fingerprints]) -> Compared:
        """Compare all records with all rows.

        Args:
            table: the fingerprints of the table, which may still be made.
        """
        self._keep_winners()
        kafka = _added(self._staging.each(_fingerprints))
        rows = table.result()
        count = sum(number for number, _ in rows.values())
        differing = sorted(bucket for bucket in kafka.keys() | rows.keys() if kafka.get(bucket) != rows.get(bucket))
        if not differing:
            return Compared(rows=count, equal=True)
        condition = self._sql.in_buckets(None if 2 * len(differing) > BUCKETS else differing)
        self._collect(condition, condition)
        return Compared(rows=count, equal=False)

    def part(self, *, order: int | None = None) -> Compared:
        """Compare some records with those rows that have the same hash, or the same key.

        Args:
            order: with upserts, the number of the batch whose records are compared, where later ones are staged too.
        """
        before = 0 if order is None else sum(self._staging.each(lambda session: _count_batch(session, order)))
        self._keep_winners()
        left = 0 if order is None else sum(self._staging.each(lambda session: _keep_batch(session, order)))
        late = self._collect("true", self._sql.of_records(), may_be_late=self._sql.order_first)
        ((rows,),) = self._snapshot.run("SELECT count(*) FROM pg_temp.verify_rows")
        return Compared(rows=rows - late, equal=False, superseded=before - left, late=late)

    def _keep_winners(self) -> None:
        if self._sql.upsert:
            self._staging.each(lambda session: _run(session, session.sql.keep_winners("verify_staged")))

    def _collect(self, of_records: str, of_rows: str, *, may_be_late: bool = False) -> int:
        """Bring hashes of both sides together, and leave what is on one side alone.

        Returns:
            how many records were left out, as the table has a newer row that records of other batches tell.
        """
        late = 0
        run, sql = self._snapshot.run, self._sql
        run(sql.make_records())
        for session in self._staging.sessions:
            self._move(session, of_records)
        if sql.upsert:
            # The records of a key may have been in partitions of several sessions.
            for statement in sql.keep_winners("verify_records"):
                run(statement)
        run("ANALYZE pg_temp.verify_records")
        run(sql.make_rows(of_rows))
        if may_be_late:
            ((late,),) = run(sql.drop_late_records())
        if sql.tombstones is not None:
            run(sql.drop_obeyed_tombstones())
        for statement in sql.make_lone():
            run(statement)
        return int(late)

    def _move(self, session: StagingSession, condition: str) -> None:
        with SpooledTemporaryFile(_SPOOLED_BYTES_MAX) as hashes:
            with session.connection.cursor() as cursor:
                cursor.copy_expert(self._sql.copy_staged(condition), hashes)
            hashes.seek(0)
            with self._snapshot.cursor() as cursor:
                cursor.copy_expert("COPY pg_temp.verify_records FROM STDIN", hashes)


def table_fingerprints(snapshot: Snapshot, sql: SideSql) -> Fingerprints:
    """The fingerprints of the table."""
    return _as_fingerprints(snapshot.run(sql.table_fingerprints()))


def _fingerprints(session: StagingSession) -> Fingerprints:
    with session.connection.cursor() as cursor:
        cursor.execute(session.sql.staged_fingerprints())
        return _as_fingerprints(cursor.fetchall())


def _as_fingerprints(answers: Iterable[tuple[Any, ...]]) -> Fingerprints:
    return {bucket: (count, int(total)) for bucket, count, total in answers}


def _added(parts: Sequence[Fingerprints]) -> Fingerprints:
    counts: Counter[int] = Counter()
    totals: Counter[int] = Counter()
    for part in parts:
        for bucket, (count, total) in part.items():
            counts[bucket] += count
            totals[bucket] += total
    return {bucket: (count, totals[bucket]) for bucket, count in counts.items()}


def _count_batch(session: StagingSession, order: int) -> int:
    with session.connection.cursor() as cursor:
        cursor.execute(session.sql.count_batch("verify_staged", order))
        ((count,),) = cursor.fetchall()
        return int(count)


def _keep_batch(session: StagingSession, order: int) -> int:
    _run(session, [session.sql.keep_batch("verify_staged", order)])
    return _count_batch(session, order)


def _run(session: StagingSession, statements: Iterable[str]) -> None:
    with session.connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
