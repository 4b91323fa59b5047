"""The records of the open transaction against the table: what a person needs who commits or aborts it by hand.

The coordinator is asked for the transaction as recovery asks it; the records are read by confluent-kafka.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from spark_2pc_sink.clock import Deadline, SystemClock
from spark_2pc_sink.ids import TopicPartition, TransactionState
from spark_2pc_sink.producer.cluster import Cluster
from spark_2pc_sink.producer.transaction_client import TransactionClient
from spark_2pc_sink.recovery.open_transaction import began_at
from spark_2pc_sink.verification.comparison import Comparison
from spark_2pc_sink.verification.differences import THE_TABLE, Differences
from spark_2pc_sink.verification.evidence import Evidence, gathered
from spark_2pc_sink.verification.letter_check import count_open_letters
from spark_2pc_sink.verification.lone import Lone
from spark_2pc_sink.verification.places import Places
from spark_2pc_sink.verification.reading import Bounds, RecordStage, sample, stage_uncommitted
from spark_2pc_sink.verification.report import OpenTransactionRows, Verdict, VerifyReport
from spark_2pc_sink.verification.request import Request
from spark_2pc_sink.verification.schema_values import ValueReader, formats_of, no_registry, value_reader
from spark_2pc_sink.verification.staging import NewFieldsError, NotRowsError, RecordTexts, Staging
from spark_2pc_sink.verification.table_plan import TablePlan
from spark_2pc_sink.verification.table_shape import read_shape
from spark_2pc_sink.verification.tally import Tally


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
        found = None if opened is None else _compare(request, evidence, opened, differences)
    share = None if found is None else found.share
    verdict: Verdict = "same" if share == "all" else "different" if share in ("none", "some") else "not_checked"
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
            differences.skip("the open transaction", f"Kafka has none of this id, it is {described.state}")
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


def _compare(
    request: Request, evidence: Evidence, opened: OpenTransaction, differences: Differences
) -> OpenTransactionRows:
    """Records of rows against the table, and dead letters against theirs."""
    letters = {at: bound for at, bound in opened.bounds.items() if at.topic in evidence.letter_topics}
    if not letters:
        return _compare_rows(request, evidence, opened, differences)
    count, there = count_open_letters(evidence, request.options.transactional_id, letters)
    if there is None:
        differences.skip("dead letters", "the dead-letter table is not there, or this role may not read it")
    rows = replace(opened, bounds={at: bound for at, bound in opened.bounds.items() if at not in letters})
    found = _compare_rows(request, evidence, rows, differences) if rows.bounds else None
    records, in_table = (0, 0) if found is None else (found.records, found.in_table)
    both = None if in_table is None or there is None else in_table + there
    return _rows_of(opened, records=records + count, in_table=both)


def _compare_rows(
    request: Request, evidence: Evidence, opened: OpenTransaction, differences: Differences
) -> OpenTransactionRows:
    if evidence.layout is not None and evidence.layout.lanes:
        why = "of a sink with several outputs, records of the open transaction are not compared with its tables"
        differences.skip(THE_TABLE, why)
        return _rows_of(opened, records=_length(opened.bounds), in_table=None)
    target = request.target.completed(evidence.layout)
    if target.table is None:
        differences.skip("the table", "nobody has said which one it is: pass table (--table)")
        return _rows_of(opened, records=_length(opened.bounds), in_table=None)
    with evidence.snapshot.cursor() as cursor:
        shape = read_shape(cursor, target.table)
    formats = formats_of(evidence.layout)
    if formats and request.registry is None:
        differences.skip("the table", no_registry(formats))
        return _rows_of(opened, records=_length(opened.bounds), in_table=None)
    read = value_reader(evidence.layout, request.registry)
    facts = sample(evidence.reader, read, opened.bounds, committed=False)
    plan = TablePlan(target, shape, facts, Places(opened.bounds), whole=False)
    if refusal := plan.refusal():
        differences.skip("the table", refusal)
        return _rows_of(opened, records=_length(opened.bounds), in_table=None)
    while True:
        try:
            return _staged(request, evidence, opened, plan, differences, read)
        except NewFieldsError as error:
            plan.learn(error.values)
        except NotRowsError as error:
            differences.skip("the table", f"most records cannot become rows of it: {error}")
            return _rows_of(opened, records=_length(opened.bounds), in_table=None)


def _staged(  # noqa: PLR0917 - each has a type of its own
    request: Request,
    evidence: Evidence,
    opened: OpenTransaction,
    plan: TablePlan,
    differences: Differences,
    read: ValueReader,
) -> OpenTransactionRows:
    sql = plan.sql()
    nothing = Tally((), {})
    with Staging(evidence.database, sql, statement_timeout_ms=request.options.statement_timeout_ms) as staging:
        texts = RecordTexts.of(sql, read)
        stage = RecordStage(staging, plan.places, texts, lambda *_: True)
        records = stage_uncommitted(evidence.reader, opened.bounds, stage, nothing)
        staging.finish()
        Comparison(evidence.snapshot, staging).part()
        sql = staging.sessions[0].sql
    lone = Lone(evidence.snapshot, sql, evidence.reader, plan.places, batch_at=lambda *_: None, read=read)
    lone.report(differences, rows_too=False)
    plan.explain(differences)
    without = sum(lone.count_records(reason) for reason in ("missing", "twice", "differing"))
    if sql.upsert:
        ((records,),) = evidence.snapshot.run("SELECT count(*) FROM verify_records")
    return _rows_of(opened, records=records, in_table=records - without)


def _rows_of(opened: OpenTransaction, *, records: int, in_table: int | None) -> OpenTransactionRows:
    return OpenTransactionRows(
        state=opened.state,
        records=records,
        in_table=in_table,
        partitions={str(at): (first, end - 1) for at, (first, end) in opened.bounds.items()},
    )


def _length(bounds: Bounds) -> int:
    return sum(end - start for start, end in bounds.values())
