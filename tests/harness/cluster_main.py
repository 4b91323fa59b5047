"""A driver whose tasks run in executors of their own: a cluster of two, with one core each, on this machine.

Usage: ``python -m tests.harness.cluster_main OPTIONS_JSON DIRECTORY``. Prints how many parts each batch has staged.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from spark_2pc_sink.sink.transfer.copy_thread import CopyThread
from spark_2pc_sink.sink.written_rows import WrittenRows
from spark_2pc_sink.testing.spark import start_spark
from tests.harness.one_batch import write_one_batch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

    from spark_2pc_sink.sink.contract.receipts import EncodeReceipt

ROOT = Path(__file__).parents[2]
ROWS = 100_000


def main(options: str, directory: str) -> None:
    """Run one batch of ``ROWS`` rows."""
    root = Path(directory)
    spark = start_spark(
        root / "local",
        python_path=ROOT,
        quick=True,
        settings={"spark.master": "local-cluster[2,1,1024]", "spark.executor.memory": "512m"},
    )
    finish = CopyThread.finish

    def show(copy: CopyThread, connection: Connection, sources: Sequence[EncodeReceipt]) -> WrittenRows:
        parts = [lane.staged_parts for source in sources for lane in source.lanes.values()]
        print(json.dumps([number for number in parts if number]), flush=True)
        return finish(copy, connection, sources)

    CopyThread.finish = show  # type: ignore[assignment,method-assign]
    write_one_batch(spark, root, options, rows=ROWS, value="concat('value-', id)")


if __name__ == "__main__":
    main(*sys.argv[1:])
