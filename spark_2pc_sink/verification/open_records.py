"""The open transaction's records against the tables: information for a person who commits or aborts it by hand.

The coordinator is queried as in recovery; the records are read by confluent-kafka. They are compared like those of one
batch that is invisible to read_committed consumers.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from jdbc_state.sqlstate import translated
from spark_2pc_sink.clock import Deadline, SystemClock
from spark_2pc_sink.ids import TopicPartition, TransactionState
from spark_2pc_sink.kafka.cluster import Cluster
from spark_2pc_sink.kafka.transaction_client import TransactionClient
from spark_2pc_sink.recovery.diagnosis import began_at
from spark_2pc_sink.verification.api import Scope, VerifyRequest
from spark_2pc_sink.verification.dead_letters import count_open_dead_letters
from spark_2pc_sink.verification.evidence import Evidence, gathered
from spark_2pc_sink.verification.history import Claims, HistoryBatch, Ranges, Tally
from spark_2pc_sink.verification.report import Differences, OpenTable, OpenTransactionRows, Verdict, VerifyReport
from spark_2pc_sink.verification.table_pairs import dead_letter_topics
from spark_2pc_sink.verification.verification import compare_tables


def run_open(request: VerifyRequest) -> VerifyReport:
    differences = Differences(request.differences_max)
    with gathered(request) as evidence:
        bounds = _find(evidence, differences)
        found = None if bounds is None else _compare(evidence, differences, bounds)
    share = None if found is None else found.share
    verdict: Verdict = "same" if share == "all" else "different" if share in ("none", "some") else "inconclusive"
    return VerifyReport(
        transactional_id=request.options.transactional_id,
        verdict=verdict,
        known=evidence.row is not None or found is not None,
        scope="the open transaction",
        records=0 if found is None else found.records,
        open_transaction=found,
        **differences.fields(),
    )


def _find(evidence: Evidence, differences: Differences) -> Ranges | None:
    """First and last offset of the open transaction's records in each partition; None if there is none."""
    options = evidence.request.options
    with Cluster(options.kafka) as cluster:
        client = TransactionClient(cluster, options.transactional_id, options.kafka)
        described = client.describe()
        if described.state != TransactionState.ONGOING:
            why = f"Kafka has none for this id; the state is {described.state}"
            differences.skip("the open transaction", why, "leave out --open to compare committed records")
            return None
        row = evidence.row
        if row is not None and row.prepared_transaction_state == str(described.producer) and row.kafka_offsets:
            return {TopicPartition.parse(name): at for name, at in row.kafka_offsets.items()}
        began = began_at(client, Deadline(SystemClock(), options.settle_deadline_ms))
    for partition, at in began.items():
        if isinstance(at, str) and at != "no record yet":
            differences.skip(f"records of {partition}", at)
    written = evidence.reader.describe({partition.topic for partition in began}).written
    why = "after its first record, they cannot be distinguished from records of other producers"
    differences.skip("which producer wrote the records", why)
    return {at: (first, written[at] - 1) for at, first in began.items() if isinstance(first, int)}


def _compare(evidence: Evidence, differences: Differences, ranges: Ranges) -> OpenTransactionRows:
    """Compare records of rows with the tables, and dead letters with theirs; report what cannot be compared."""
    logs = evidence.reader.describe({*evidence.logs.topic_ids, *(at.topic for at in ranges)})
    rows = {at: each for at, each in ranges.items() if at.topic not in dead_letter_topics(evidence.noted)}
    letters = {at: (first, last + 1) for at, (first, last) in ranges.items() if at not in rows}
    compared = []
    if letters:
        count, there = count_open_dead_letters(evidence, letters)
        if there is None:
            differences.skip("dead letters", "the dead-letter table does not exist, or this role cannot read it")
        else:
            compared.append((count, there))
    only = replace(
        evidence,
        request=replace(evidence.request, scope=Scope(last=1), write_missing=None),
        claims=Claims(claims=(HistoryBatch(batch=None, decision=0, ranges=rows, hidden="it is open"),)),
        ends={},
        logs=logs,
        noted=evidence.noted[-1:],
        is_open=True,
    )
    tables: list[OpenTable] = []
    if rows or evidence.has_several:
        with translated(evidence.database.named("verify")):
            for _, found in compare_tables(only, differences, Tally(only.claims.claims)):
                name, topics = found.result.table, () if found.in_table is None else found.result.topics
                tables.append(OpenTable(table=name, topics=topics, records=found.records, in_table=found.in_table))
        others = only.claims.topics.difference(*(table.topics for table in tables))
        if others and evidence.has_several:
            differences.skip(f"records of {', '.join(sorted(others))}", "no table that is compared has their rows")
    counts = defaultdict(list)
    for table in tables:
        if table.in_table is not None:
            counts[table.topics].append((table.records, table.in_table))
    # For tables with the same topics, the one that lacks most rows counts.
    compared += [min(each, key=lambda found: found[1] / found[0] if found[0] else 1) for each in counts.values()]
    records, written = sum(count for count, _ in compared), sum(last + 1 - first for first, last in ranges.values())
    return OpenTransactionRows(
        state=TransactionState.ONGOING,
        records=records or written,
        in_table=sum(there for _, there in compared) if records or not written else None,
        partitions={str(at): each for at, each in ranges.items()},
        tables=tuple(tables) if evidence.has_several else (),
    )
