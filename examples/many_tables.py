"""Several topics and tables in one decision: orders and their lines, deletions, and a bad row.

`python examples/many_tables.py` brings its servers, as orders_stream.py does. An order's events become its row in
`orders` and a record of the topic `orders`; each of its lines becomes a row in `order_lines`, which refers to `orders`,
and a record of `order-lines`. A batch is in all four, or in none. An order that one of them refuses is in none of them:
it becomes a dead letter. docs/outputs.md and docs/bad-rows.md explain it.
"""

import tempfile
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from spark_2pc_sink import DualWriteSink, Records, Rows
from spark_2pc_sink.testing import PostgresServer, ReferenceCoordinator, read_topic

TOPICS = ("orders", "order-lines")
TABLES = (
    "CREATE TABLE orders (id bigint PRIMARY KEY, customer text)",
    """CREATE TABLE order_lines (order_id bigint REFERENCES orders ON DELETE CASCADE, sku text,
           quantity integer CHECK (quantity > 0), PRIMARY KEY (order_id, sku))""",
)
ORDER = "id BIGINT, op STRING, version INT, customer STRING, lines ARRAY<STRUCT<sku: STRING, quantity: INT>>"
LINES = "explode(lines) AS line"
#: The files of two batches. Order 3 is bad: PostgreSQL refuses its line. The second batch deletes order 1.
EVENTS = (
    """{"id": 1, "op": "c", "version": 1, "customer": "ann", "lines": [{"sku": "tea", "quantity": 2}]}
    {"id": 2, "op": "c", "version": 1, "customer": "bob", "lines": [{"sku": "mug", "quantity": 1}]}
    {"id": 3, "op": "c", "version": 1, "customer": "eve", "lines": [{"sku": "cup", "quantity": -1}]}""",
    """{"id": 1, "op": "d", "version": 2}""",
)


def make_sink(kafka: str, database: str, *, topics: tuple[str, str] = TOPICS, name: str = "shop") -> DualWriteSink:
    """The sink of the job. `topics`: that of orders, and that of their lines."""
    return DualWriteSink(
        transactional_id=name,
        kafka={"bootstrap.servers": kafka},
        database=database,
        bad_rows="dead_letter",
        writes=[
            Records(topics[0], key="id", tombstone_when="op = 'd'"),
            Records(topics[1], rows=LINES, key="id", value="to_json(struct(id, line.*))"),
            Rows(
                "orders",
                mode="upsert",
                keys=["id"],
                order_by="version",  # of several events of one order in a batch, the last one counts
                delete_when="op = 'd'",  # deletes its lines too: ON DELETE CASCADE
                columns={"id": "id", "customer": "customer"},
            ),
            Rows(  # after the table that it refers to
                "order_lines",
                rows=LINES,
                mode="upsert",
                keys=["order_id", "sku"],
                order_by="version",
                columns={"order_id": "id", "sku": "line.sku", "quantity": "line.quantity"},
            ),
        ],
    )


def start_query(spark: SparkSession, sink: DualWriteSink, folder: str) -> StreamingQuery:
    """Start the stream of the JSON files in FOLDER/orders, which ends when they are written; one file is one batch."""
    orders = spark.readStream.schema(ORDER).option("maxFilesPerTrigger", 1).json(f"{folder}/orders")
    writer = orders.writeStream.foreachBatch(sink).option("checkpointLocation", f"{folder}/checkpoint")
    return writer.trigger(availableNow=True).start()


def main() -> None:
    """Write both batches, and print the contents of both sides."""
    spark = SparkSession.builder.master("local[2]").getOrCreate()
    with ReferenceCoordinator() as kafka, PostgresServer() as postgres, tempfile.TemporaryDirectory() as folder:
        for topic in TOPICS:
            kafka.create_topic(topic, partitions=2)
        for statement in TABLES:
            postgres.execute(statement)
        Path(folder, "orders").mkdir()
        for number, events in enumerate(EVENTS):
            Path(folder, f"orders/{number}.json").write_text(events)
            start_query(spark, make_sink(kafka.bootstrap, postgres.url), folder).awaitTermination()
        for topic in TOPICS:
            print(topic, [(record.key, record.value) for record in read_topic(kafka.bootstrap, topic)])
        for table in ("orders", "order_lines", "kafka_transaction_state_dead_letters"):
            print(table, postgres.query(f"SELECT * FROM {table}"))


if __name__ == "__main__":
    main()
