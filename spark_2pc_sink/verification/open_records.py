"""The records of the open transaction against the tables: what a person needs who commits or aborts it by hand.

The coordinator is asked for the transaction as recovery asks it; the records are read by confluent-kafka.
"""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import asdict, dataclass

from spark_2pc_sink.clock import Deadline, SystemClock
from spark_2pc_sink.ids import TopicPartition, TransactionState
from spark_2pc_sink.producer.cluster import Cluster
from spark_2pc_sink.producer.transaction_client import TransactionClient
from spark_2pc_sink.recovery.open_transaction import began_at
from spark_2pc_sink.verification.differences import THE_TABLE, Differences
from spark_2pc_sink.verification.evidence import Evidence, gathered
from spark_2pc_sink.verification.letter_check import count_open_letters
from spark_2pc_sink.verification.open_comparison import OpenComparison, OpenRows
from spark_2pc_sink.verification.reading import Bounds
from spark_2pc_sink.verification.report import OpenTable, OpenTransactionRows, Verdict, VerifyReport
from spark_2pc_sink.verification.request import Request
from spark_2pc_sink.verification.table_choice import open_pairs
from spark_2pc_sink.verification.table_pairs import NO_TOPIC, TablePair


@dataclass(frozen=True)
class OpenTransaction:
    """The transaction as the coordinator shows it.

    Attributes:
        state: Kafka's name of its state.
        bounds: first offset and end in each partition.
        exact: the bounds are those of its decision, and not its beginning and the end of the log.
    """

    state: str
    bounds: Bounds
    exact: bool = False


def run_open(request: Request) -> VerifyReport:
    """Compare the open transaction alone, as `spark_2pc_sink.verification.api.verify` says."""
    begun = time.monotonic()
    differences = Differences(request.differences_max)
    with gathered(request) as evidence:
        opened = _find(request, evidence, differences)
        found = None if opened is None else _OpenRecords(request, evidence, opened, differences).run()
    share = None if found is None else found.share
    verdict: Verdict = "same" if share == "all" else "different" if share in ("none", "some") else "inconclusive"
    return VerifyReport(
        transactional_id=request.options.transactional_id,
        verdict=verdict,
        known=evidence.row is not None or found is not None,
        scope="the open transaction",
        records=0 if found is None else found.records,
        counts=dict(differences.counts),
        differences=tuple(differences.kept),
        not_checked=tuple(differences.not_checked),
        open_transaction=found,
        seconds=round(time.monotonic() - begun, 3),
    )


def _find(request: Request, evidence: Evidence, differences: Differences) -> OpenTransaction | None:
    """Where the records of the open transaction are; None where there is none."""
    options = request.options
    with Cluster(options.kafka) as cluster:
        client = TransactionClient(cluster, options.transactional_id, options.kafka)
        described = client.describe()
        if described.state != TransactionState.ONGOING:
            why = f"Kafka has none of this id, it is {described.state}"
            differences.skip("the open transaction", why, "leave out --open to compare what is committed")
            return None
        row = evidence.row
        if row is not None and row.prepared_transaction_state == str(described.producer) and row.kafka_offsets:
            ranges = {TopicPartition.parse(name): at for name, at in row.kafka_offsets.items()}
            bounds = {at: (first, last + 1) for at, (first, last) in ranges.items()}
            return OpenTransaction(described.state, bounds, exact=True)
        began = began_at(client, Deadline(SystemClock(), options.settle_deadline_ms))
    for partition, at in began.items():
        if isinstance(at, str) and at != "no record yet":
            differences.skip(f"records of {partition}", at)
    logs = evidence.reader.describe({partition.topic for partition in began})
    bounds = {at: (first, logs.written[at]) for at, first in began.items() if isinstance(first, int)}
    why = "from its first record on, those of other producers cannot be told from its own"
    differences.skip("whose the records are", why)
    return OpenTransaction(described.state, bounds)


class _OpenRecords:
    """Compares the records of one open transaction, and counts those that have their rows.

    Args:
        request: of the caller.
        evidence: all but records and rows.
        opened: the transaction.
        differences: takes what is found.
    """

    def __init__(self, request: Request, evidence: Evidence, opened: OpenTransaction, differences: Differences) -> None:
        self._request = request
        self._evidence = evidence
        self._opened = opened
        self._differences = differences
        letters = evidence.letter_topics
        self._letters = {at: bound for at, bound in opened.bounds.items() if at.topic in letters}
        self._rows = {at: bound for at, bound in opened.bounds.items() if at.topic not in letters}
        self._compared: list[OpenRows] = []
        self._tables: list[OpenTable] = []

    def run(self) -> OpenTransactionRows:
        """Compare records of rows with the tables, and dead letters with theirs; what cannot be compared is said."""
        layout = self._evidence.layout
        if self._letters:
            self._compare_letters()
        if layout is not None and layout.lanes:
            self._compare_tables()
        elif self._rows and (found := self._comparison().run(self._rows)) is not None:
            self._compared.append(found)
        records = sum(found.records for found in self._compared)
        written = sum(end - first for first, end in self._opened.bounds.values())
        return OpenTransactionRows(
            state=self._opened.state,
            records=records or written,
            in_table=sum(found.in_table for found in self._compared) if records or not written else None,
            partitions={str(at): (first, end - 1) for at, (first, end) in self._opened.bounds.items()},
            tables=tuple(self._tables),
        )

    def _compare_letters(self) -> None:
        count, there = count_open_letters(self._evidence, self._request.options.transactional_id, self._letters)
        if there is None:
            self._differences.skip("dead letters", "the dead-letter table is not there, or this role may not read it")
        else:
            self._compared.append(OpenRows(count, there))

    def _compare_tables(self) -> None:
        """Of topics that tell several tables, the one that lacks most rows counts."""
        told: dict[frozenset[str], list[OpenRows]] = defaultdict(list)
        for pair in open_pairs(self._request, self._evidence, self._rows):
            with self._differences.about(pair.table):
                found = self._compare_table(pair)
            if found is None:
                self._tables.append(OpenTable(table=pair.table))
                continue
            topics = tuple(sorted(pair.all_topics))
            self._tables.append(OpenTable(table=pair.table, topics=topics, **asdict(found)))
            told[pair.all_topics].append(found)
        self._compared += [min(each, key=lambda rows: rows.share) for each in told.values()]
        if untold := {at.topic for at in self._rows}.difference(*told):
            why = "no table that is compared has their rows"
            self._differences.skip(f"records of {', '.join(sorted(untold))}", why)

    def _compare_table(self, pair: TablePair) -> OpenRows | None:
        if pair.why:
            self._differences.skip(THE_TABLE, pair.why, NO_TOPIC)
            return None
        own = {at: bound for at, bound in self._rows.items() if at.topic in pair.all_topics}
        return self._comparison(pair).run(own) if own else OpenRows(0, 0)

    def _comparison(self, pair: TablePair | None = None) -> OpenComparison:
        return OpenComparison(self._request, self._evidence, self._differences, pair=pair)
