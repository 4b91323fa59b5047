"""verify over ten million rows: seconds, CPU time on each side, and memory of the client.

Both sides are made without Spark: records by librdkafka, rows by one INSERT … SELECT, and a history with their digests.
The topic has 8 partitions, and 40 batches wrote to each. The client is a process of its own, so that its peak of
resident memory is that of verify alone.

    python -m benchmarks verify --rows 500000
"""

from __future__ import annotations

import json
import time
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any

from confluent_kafka import Producer

from benchmarks import fresh
from benchmarks.processes import ProcessTree
from benchmarks.workbench import KAFKA_JVM, POSTGRES_SETTINGS
from jdbc_state import Decision, SqlStateStore
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.options import KafkaOptions
from spark_2pc_sink.testing import KafkaBroker, PostgresServer, wait_until
from spark_2pc_sink.testing.kafka_broker import create_topic
from spark_2pc_sink.verification.history import MODULUS, content_of, digest_of, digest_text
from spark_2pc_sink.verification.topic_reader import TopicReader

if TYPE_CHECKING:
    from benchmarks.scale import Scale

FULL_ROWS = 10_000_000
QUICK_ROWS = 500_000
BATCHES = 40
PARTITIONS = 8
NAME = "verified"
_COLUMNS = "id bigint, customer text, amount numeric(12,2), quantity int, created timestamptz, paid boolean"
#: The same rows as `_value` writes.
_ROWS = f"""
INSERT INTO {NAME}
SELECT g, 'customer ' || g %% 1000, (g %% 100000) / 100.0, g %% 7,
       timestamptz '2023-11-14 22:13:20Z' + g * interval '1 second' + interval '123456 microseconds', g %% 2 = 0
FROM generate_series(%s, %s) AS g
"""
_EPOCH_S = 1_700_000_000
_DEADLINE_S = 120


def measure(scale: Scale) -> dict[str, Any]:
    """Figures of one verification."""
    rows = scale.batch_rows(scale.pick(full=FULL_ROWS, quick=QUICK_ROWS))
    with ExitStack() as stack:
        broker = stack.enter_context(KafkaBroker(jvm_options=KAFKA_JVM))
        postgres = stack.enter_context(PostgresServer(settings=POSTGRES_SETTINGS))
        database = postgres.create_database("bench")
        begun = time.perf_counter()
        _write(broker.bootstrap, database, rows)
        print(f"{rows} rows made in {time.perf_counter() - begun:.0f} s", flush=True)
        tree = ProcessTree({broker.pid: "kafka", postgres.pid: "postgresql"})
        before = tree.cpu_s()
        arguments = {"name": NAME, "bootstrap": broker.bootstrap, "database": database}
        found: dict[str, Any] = fresh.call("benchmarks.verify_client", "verify_once", arguments)
        after = tree.cpu_s()
    used = {kind: after[kind] - before.get(kind, 0.0) for kind in ("kafka", "postgresql")}
    found |= {f"{kind}_cpu_s": round(seconds, 1) for kind, seconds in used.items()}
    print(_line(found), flush=True)
    if found["verdict"] != "same" or found["rows"] != rows:
        message = f"verify found {found['verdict']} in {found['rows']} of {rows} rows"
        raise SystemExit(message)
    return found


def _write(bootstrap: str, database: str, rows: int) -> None:
    """Make topic, table, state row and history."""
    create_topic(bootstrap, NAME, partitions=PARTITIONS)
    reader = TopicReader(KafkaOptions.parse({"bootstrap.servers": bootstrap}))
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": NAME,
            "compression.type": "zstd",
            "linger.ms": 20,
            "batch.num.messages": 100_000,
        }
    )
    producer.init_transactions(_DEADLINE_S)
    with closing(SqlStateStore(database)) as store:
        store.prepare_schema()
        with closing(store.database.session("benchmark")) as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE TABLE {NAME} ({_COLUMNS})")
        row = store.claim(transactional_id=NAME, cluster_id=reader.cluster_id(), query_id="query", run_id="run")
        for batch in range(BATCHES):
            first, last = rows * batch // BATCHES + 1, rows * (batch + 1) // BATCHES
            offsets, digest = _send(producer, reader, first, last)
            with store.deciding(NAME, row.generation) as transaction:
                transaction.connection.exec_driver_sql(_ROWS, (first, last))
                transaction.decide(
                    Decision(
                        prepared=f"1:{batch}",
                        expected=row.prepared_transaction_state,
                        batch_id=batch,
                        row_count=last - first + 1,
                        record_count=last - first + 1,
                        digest=digest,
                        kafka_offsets=offsets,
                        topic_ids=reader.describe([NAME]).topic_ids,
                    )
                )
            row = store.mark_done(NAME, row.generation, f"1:{batch}")
        with closing(store.database.session("benchmark")) as connection, connection.cursor() as cursor:
            cursor.execute(f"VACUUM (ANALYZE) {NAME}")
            cursor.execute("CHECKPOINT")


def _send(producer: Producer, reader: TopicReader, first: int, last: int) -> tuple[dict[str, tuple[int, int]], str]:
    """Send records in one transaction: where they are, and their digest."""
    partitions = [TopicPartition(NAME, number) for number in range(PARTITIONS)]
    starts = reader.describe([NAME]).ends
    producer.begin_transaction()
    contents = []
    for number in range(first, last + 1):
        key, value = str(number).encode(), _value(number)
        while True:
            try:
                producer.produce(NAME, value, key)
            except BufferError:
                producer.poll(0.1)
            else:
                break
        contents.append(content_of(key, value, None))
    producer.commit_transaction(_DEADLINE_S)
    wait_until(lambda: _is_settled(reader), deadline_s=_DEADLINE_S, what="end markers")
    ends = reader.describe([NAME]).ends
    # The end marker takes the last offset.
    offsets = {str(each): (starts[each], ends[each] - 2) for each in partitions if ends[each] > starts[each] + 1}
    return offsets, digest_text(digest_of(NAME, contents) % MODULUS)


def _is_settled(reader: TopicReader) -> bool:
    """Whether no transaction is open in the logs."""
    logs = reader.describe([NAME])
    return logs.ends == logs.written


def _value(number: int) -> bytes:
    moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(_EPOCH_S + number))
    return json.dumps(
        {
            "id": number,
            "customer": f"customer {number % 1000}",
            "amount": number % 100_000 / 100,
            "quantity": number % 7,
            "created": f"{moment}.123Z",
            "paid": number % 2 == 0,
        },
        separators=(",", ":"),
    ).encode()


def _line(found: dict[str, Any]) -> str:
    return (
        f"{found['rows']} rows in {found['seconds']} s; CPU: client {found['client_cpu_s']} s, PostgreSQL "
        f"{found['postgresql_cpu_s']} s, Kafka {found['kafka_cpu_s']} s; client's peak {found['client_peak_mib']} MiB"
    )
