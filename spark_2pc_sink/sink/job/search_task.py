"""The task that looks for bad rows: rows in, one receipt out, and no effect on Kafka.

It applies the attempt's encoding code, and if that refuses some rows it tries halves of them: so every refused row is
found, with the reason of its refusal. Rows that can be encoded may be sent to the driver, in parts with their names
(`SiftedPart`), for the database to try.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

import pyarrow as pa

from spark_2pc_sink.errors import DataError, RecordRefusedError
from spark_2pc_sink.kafka.record_encoder import RecordEncoder
from spark_2pc_sink.sink.bad_rows.bad_row import IDENTITY, NUMBER, WINS, RefusedRow, find_refused, name_of, pack_rows
from spark_2pc_sink.sink.job.encode_task import RowPartitioner, completed_rows
from spark_2pc_sink.sink.job.task_plan import TaskIdentity, TaskPlan, TaskReceipt
from spark_2pc_sink.sink.rows.copy_encoder import CopyEncoder
from spark_2pc_sink.sink.stream.task_stream import TaskStream
from spark_2pc_sink.wire.batch_reader import content_digests, contents_of


@dataclass(frozen=True)
class SearchPlan:
    """What a task searches for. Can be pickled."""

    tasks: TaskPlan
    #: Send rows that can be encoded to the driver, for the database to try. It has refused some of them, so all are
    #: known to become records.
    staged: bool
    #: '' for a lane without one.
    table: str
    most: int
    #: A broker's refusal of named records: rows that become these records are refused for its reason.
    refusal: RecordRefusedError | None = None


def run_search_task(batches: Iterable[pa.RecordBatch], plan: SearchPlan, identity: TaskIdentity) -> TaskReceipt:
    with plan.tasks.open_stream(identity) as stream:
        return _SearchTask(plan, identity, stream).run(batches)


class _SearchTask:
    def __init__(self, plan: SearchPlan, identity: TaskIdentity, stream: TaskStream) -> None:
        self._plan = plan
        self._identity = identity
        self._stream = stream
        tasks = plan.tasks
        [self._lane] = tasks.lanes
        self._topics = replace(tasks.topics, ask=stream.ask)
        self._partitioner = RowPartitioner(self._lane.topic, self._topics.partition_count)

    def run(self, batches: Iterable[pa.RecordBatch]) -> TaskReceipt:
        refused: list[RefusedRow] = []
        rows, most = 0, self._plan.most
        for batch in batches:
            rows += batch.num_rows
            names = batch.select([IDENTITY, NUMBER, WINS])
            found = find_refused(batch.num_rows, partial(self._try, batch, names), most=most - len(refused))
            refused += [RefusedRow.of(*name_of(names, row), output, error) for row, (output, error) in found]
            if len(refused) > most:
                break
        self._stream.finish()
        return TaskReceipt(*self._identity, rows=rows, refused=tuple(refused), sent=self._stream.totals)

    def _try(self, batch: pa.RecordBatch, named: pa.RecordBatch, start: int, stop: int) -> tuple[str, DataError] | None:
        """Encode rows as records and COPY bytes; None if all succeeded, else the refusing output and the reason."""
        rows, names = batch.slice(start, stop - start), named.slice(start, stop - start)
        output = f"topic {self._lane.topic or 'of the row'}"
        try:
            completed = completed_rows(self._lane, rows)
            if self._lane.sends and not self._plan.staged:
                self._make_records(completed)
            output = f"table {self._plan.table}"
            if self._lane.row_encoder is not None:
                encoder = CopyEncoder(self._lane.row_encoder)
                encoded = encoder.encode(encoder.checked(completed)) + encoder.finish()
                if self._plan.staged:
                    self._stream.rows(self._lane.index, pack_rows(names, encoded), names.num_rows)
        except DataError as error:
            return output, error
        return None

    def _make_records(self, rows: pa.RecordBatch) -> None:
        """Make records, which is the actual try; and refuse records that a broker has refused."""
        tasks, refusal = self._plan.tasks, self._plan.refusal
        encoder = RecordEncoder(tasks.encoding, timestamp_ms=tasks.timestamp_ms, limits=self._topics.limits_of)
        made = chain.from_iterable(encoder.append(*each) for each in self._partitioner.split_batch(rows))
        for batch in chain(made, encoder.finish()):
            if refusal is not None and batch.partition.topic == refusal.topic:
                contents = contents_of(batch.payload, batch.record_count)
                if not refusal.contents.isdisjoint(content_digests(contents)):
                    raise refusal
