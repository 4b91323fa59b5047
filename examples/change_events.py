"""A streaming job: Debezium's change events from a Kafka topic, to a PostgreSQL table and another topic, exactly once.

    spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0 examples/change_events.py \
        --kafka 127.0.0.1:9092 --source shop.public.products --topic products --checkpoint /tmp/checkpoint \
        --database postgresql+psycopg2://me@127.0.0.1/copy --available-now

The table has each row as it is at the source, and no row that was deleted there. The topic has each state of a row as
its own JSON, and a tombstone for a deleted one. For a table of yours change COLUMNS and KEYS. docs/change-events.md
explains it, and says which connector goes with which PySpark.
"""

from __future__ import annotations

import argparse
import base64
import json
import sys
from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from spark_2pc_sink import DualWriteSink

#: The columns of the source table, with the type that each has in the copy.
COLUMNS = {
    "id": "BIGINT",
    "name": "STRING",
    "price": "DECIMAL(10, 2)",
    "description": "STRING",
    "listed": "DATE",
    "changed": "TIMESTAMP_NTZ",
}
KEYS = ["id"]
#: Columns that PostgreSQL may store out of line (TOAST): an update that does not change one does not send its value.
LARGE = [
    name
    for name, kind in COLUMNS.items()
    if name not in KEYS and kind.startswith(("STRING", "BINARY", "DECIMAL", "ARRAY"))
]
#: The schema of a field in Kafka Connect's JSON converter, with schemas.enable=true.
FIELDS = "ARRAY<STRUCT<field STRING, type STRING, name STRING, parameters MAP<STRING, STRING>>>"
SCHEMA = f"ARRAY<STRUCT<field STRING, fields {FIELDS}>>"
ROW = f"{', '.join(COLUMNS)}, if(size(unchanged) > 0, unchanged, NULL) AS unchanged"


def start_query(spark: SparkSession, given: argparse.Namespace) -> StreamingQuery:
    """Start the stream."""
    sink = DualWriteSink(
        transactional_id=given.transactional_id,
        kafka={"bootstrap.servers": given.kafka},
        database=given.database,
        topic=given.topic,
        key=KEYS[0],
        value=f"""to_json(struct({ROW}), map('timestampNTZFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"))""",
        table=given.table,
        columns={name: name for name in COLUMNS},
        create_table=True,
        mode="upsert",
        upsert_keys=KEYS,
        upsert_order_by="lsn",  # of several changes of one row in a batch, the last one counts
        delete_when="op = 'd'",
        tombstones=True,
        unchanged_when={name: f"array_contains(unchanged, '{name}')" for name in LARGE},
    )
    changes = read_changes(spark, given)
    writer = changes.writeStream.foreachBatch(sink).option("checkpointLocation", given.checkpoint)
    return (writer.trigger(availableNow=True) if given.available_now else writer).start()


def read_changes(spark: SparkSession, given: argparse.Namespace) -> DataFrame:
    """Read one row for each change: op, lsn, the names of columns without a value (unchanged), and COLUMNS."""
    records = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", given.kafka)
        .option("kafka.isolation.level", "read_committed")
        .option("subscribe", given.source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", given.max_offsets_per_trigger)
        .load()
    )
    # After each deletion Debezium sends a tombstone of its own, without a value or without a payload.
    events = (
        records.where("value IS NOT NULL")
        .selectExpr(
            "CAST(value AS STRING) AS text",
            "parse_json(CAST(value AS STRING)) AS event",
            "try_parse_json(CAST(key AS STRING)) AS key",
        )
        .selectExpr(
            "text",
            payload("event"),
            payload("key"),
            f"get(filter(variant_get(event, '$.schema.fields', '{SCHEMA}'), f -> f.field = 'after'), 0) AS schema",
        )
        .where("NOT is_variant_null(event)")
        .selectExpr("*", "variant_get(event, '$.op', 'string') AS op")
        .where(is_change(ignore_truncate=given.ignore_truncate))
    )
    rows = events.selectExpr(
        "op",
        "variant_get(event, '$.source.lsn', 'BIGINT') AS lsn",  # of PostgreSQL's connector; others order otherwise
        "map_from_entries(transform(schema.fields, f -> struct(f.field, f))) AS types",
        "key",
        "variant_get(event, if(op = 'd', '$.before', '$.after'), 'variant') AS row",
    )
    values = rows.selectExpr("op", "lsn", "types", *(f"{field(name)} AS {name}" for name in COLUMNS))
    placeholders = ", ".join(f"'{text}'" for text in spellings(given.placeholder))
    lacking = [f"if(CAST({name} AS STRING) IN ({placeholders}), '{name}', NULL)" for name in LARGE]
    values = values.selectExpr("*", f"array_compact(array({', '.join(lacking)})) AS unchanged")
    columns = [f"{decoded(name, kind, given.decimals)} AS {name}" for name, kind in COLUMNS.items()]
    return values.selectExpr("op", "lsn", "unchanged", *columns)


def payload(name: str) -> str:
    """SQL for a message of Kafka Connect, with its schema (``{"schema": …, "payload": …}``) or without."""
    return f"coalesce(variant_get({name}, '$.payload', 'variant'), {name}) AS {name}"


def is_change(*, ignore_truncate: bool) -> str:
    """SQL: true for a change of a row, false for an application's message, an error for anything else."""
    truncated = "false" if ignore_truncate else "raise_error('The source table was truncated (op t), and the copy was "
    truncated += "" if ignore_truncate else "not: delete its rows, then start the job with --ignore-truncate')"
    return f"""CASE WHEN op IN ('c', 'r', 'u', 'd') THEN true WHEN op = 'm' THEN false WHEN op = 't' THEN {truncated}
        ELSE raise_error(concat('This is not a change event of Debezium (its op is ', coalesce(op, 'missing'), '; with '
            'ExtractNewRecordState there is none, so remove that transformation): ', left(text, 200))) END"""


def field(name: str) -> str:
    """SQL for a field of the row, or of the record's key for a deletion that has only the key."""
    path = f"""'$["{name}"]', 'variant'"""
    found = f"variant_get(row, {path})"
    return found if name not in KEYS else f"if(CAST({found} AS STRING) IS NULL, variant_get(key, {path}), {found})"


def spellings(placeholder: str) -> list[str]:
    """Spellings of Debezium's placeholder: text, and JSON of bytes, arrays of texts or numbers, and a map."""
    content = placeholder.encode()
    told = ([placeholder], list(content), {placeholder: placeholder})
    texts = [placeholder, base64.b64encode(content).decode(), *(json.dumps(x, separators=(",", ":")) for x in told)]
    return [text.replace("\\", "\\\\").replace("'", "\\'") for text in texts]


def decoded(name: str, kind: str, decimals: str | None) -> str:
    """SQL for the value of a field, as Debezium and Kafka Connect write its type; null where there is none."""
    text = f"CAST({name} AS STRING)"
    if kind.startswith("DECIMAL"):
        value = decimal(name, kind, decimals)
    elif kind == "DATE":
        value = f"if({text} RLIKE '^-?[0-9]+$', date_from_unix_date(CAST({text} AS INT)), CAST({text} AS DATE))"
    elif kind in ("TIMESTAMP", "TIMESTAMP_NTZ"):
        value = f"if({text} RLIKE '^-?[0-9]+$', {instant(name, kind)}, CAST({text} AS {kind}))"
    elif kind == "BINARY":
        value = f"unbase64({text})"
    else:
        value = f"CAST({name} AS {kind})"
    return value if name not in LARGE else f"CASE WHEN array_contains(unchanged, '{name}') THEN NULL ELSE {value} END"


def instant(name: str, kind: str) -> str:
    """SQL for a time as a number: with a schema in the unit that it names, else in microseconds."""
    unit = f"types['{name}'].name"
    number = f"CAST(CAST({name} AS STRING) AS BIGINT)"
    micros = f"""CASE WHEN {unit} LIKE '%.NanoTimestamp' THEN {number} DIV 1000
        WHEN {unit} LIKE '%.Timestamp' THEN {number} * 1000 ELSE {number} END"""
    if kind == "TIMESTAMP":
        return f"timestamp_micros({micros})"
    return f"TIMESTAMP_NTZ '1970-01-01' + INTERVAL '0.000001' SECOND * ({micros})"


def decimal(name: str, kind: str, decimals: str | None) -> str:
    """SQL for a decimal as a number or text, or as base64 of its unscaled value (decimal.handling.mode=precise).

    A schema says which it is. Without one, base64 has no point or minus; a text of digits may be either.
    """
    _, _, scale = kind.rstrip(")").partition(",")
    text, said = f"CAST({name} AS STRING)", f"types['{name}']"
    encoded = (
        f"unbase64(coalesce(get_json_object({text}, '$.value'), {text}))"  # a scale of its own: VariableScaleDecimal
    )
    places = f"coalesce(get_json_object({text}, '$.scale'), {said}.parameters['scale'], '{scale.strip() or 0}')"
    # Bytes of a two's complement, the most significant first.
    unscaled = f"""aggregate(sequence(1, length({encoded})),
        CAST(if(substring({encoded}, 1, 1) >= X'80', -1, 0) AS DECIMAL(38, 0)),
        (n, i) -> CAST(n * 256 + CAST(conv(hex(substring({encoded}, i, 1)), 16, 10) AS INT) AS DECIMAL(38, 0)))"""
    ambiguous = {"precise": "true", "string": "false"}.get(
        decimals or "",
        f"CAST(raise_error(concat('{name} is ', {text}, ', either a decimal or base64 of one: start the job with "
        "--decimals string or --decimals precise, as the connector has decimal.handling.mode')) AS BOOLEAN)",
    )
    return f"""CASE WHEN {text} IS NULL THEN NULL
        WHEN CASE
            WHEN {text} LIKE '{{%' THEN true
            WHEN {said} IS NOT NULL THEN {said}.type = 'bytes'
            WHEN schema_of_variant({name}) <> 'STRING' OR {text} RLIKE '[.-]' OR length({text}) % 4 > 0 THEN false
            WHEN {text} RLIKE '^([0-9]+|Infinity)$' THEN {ambiguous}
            ELSE true
        END
        THEN CAST(concat({unscaled}, 'E', -CAST({places} AS INT)) AS {kind})
        ELSE CAST({text} AS {kind}) END"""


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Debezium's change events to PostgreSQL and Kafka, exactly once.")
    parser.add_argument("--kafka", required=True, metavar="HOST:PORT", help="bootstrap servers")
    parser.add_argument("--source", required=True, metavar="TOPIC", help="the topic of change events")
    parser.add_argument("--checkpoint", required=True, metavar="DIR", help="Spark's checkpoint")
    parser.add_argument("--database", required=True, metavar="URL", help="SQLAlchemy URL")
    parser.add_argument("--topic", default="products")
    parser.add_argument("--table", default="products")
    parser.add_argument("--transactional-id", default="products", help="stable across restarts, one for each job")
    parser.add_argument("--max-offsets-per-trigger", type=int, default=100_000, metavar="N", help="size of a batch")
    parser.add_argument("--available-now", action="store_true", help="process what is available, then stop")
    parser.add_argument(
        "--placeholder",
        default="__debezium_unavailable_value",
        metavar="TEXT",
        help="the connector's unavailable.value.placeholder",
    )
    parser.add_argument(
        "--decimals",
        choices=("precise", "string"),
        help="the connector's decimal.handling.mode, where events have no schema and a decimal may have only digits",
    )
    parser.add_argument("--ignore-truncate", action="store_true", help="leave the copy as it is when op is t")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    start_query(SparkSession.builder.appName("change events").getOrCreate(), parse(sys.argv[1:])).awaitTermination()
