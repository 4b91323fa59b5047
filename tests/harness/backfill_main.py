"""A backfill as a program of its own: ``backfill_main.py BOOTSTRAP DATABASE TRANSACTIONAL_ID TOPIC DIRECTORY``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from spark_2pc_sink import DualWriteSink
from spark_2pc_sink.testing.spark import start_spark
from tests.harness import ROOT
from tests.integration.sink.targets import SCHEMA, rows_of

#: Of the batches, with others left out.
NUMBERS: Final = (20260130, 20260131, 20260203)


def main(bootstrap: str, database: str, transactional_id: str, topic: str, directory: str) -> None:
    spark = start_spark(Path(directory), python_path=ROOT, quick=True)
    sink = DualWriteSink(
        transactional_id=transactional_id,
        kafka={"bootstrap.servers": bootstrap},
        database=database,
        topic=topic,
        key="id",
        table="public.target",
        create_table=True,
    )
    for number in NUMBERS:
        sink.write(spark.createDataFrame(rows_of(number), SCHEMA), batch_id=number)
    sink.close()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
