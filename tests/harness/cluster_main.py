"""A driver whose tasks run in executors of their own: a cluster of two, with one core each, on this machine.

Usage: ``python -m tests.harness.cluster_main SETTINGS_JSON OPTIONS_JSON DIRECTORY``. Prints from how many tasks each
batch came, and whether it came encrypted.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from unittest import mock

from spark_2pc_sink.sink.job.task_plan import TaskResults
from spark_2pc_sink.sink.stream.listener import StreamListener
from spark_2pc_sink.testing.spark import start_spark
from tests.harness.streams import write_one_batch

ROOT = Path(__file__).parents[2]
ROWS = 100_000
_DEADLINE_S = 300


def main(settings: str, options: str, directory: str) -> None:
    """Run one batch of ``ROWS`` rows."""
    root = Path(directory)
    cluster = {"spark.master": "local-cluster[2,1,1024]", "spark.executor.memory": "512m"}
    spark = start_spark(root / "local", python_path=ROOT, quick=True, settings=cluster | json.loads(settings))
    with (
        mock.patch.object(
            TaskResults, "check_arrived", autospec=True, side_effect=TaskResults.check_arrived
        ) as checked,
        mock.patch.object(
            StreamListener, "open_attempt", autospec=True, side_effect=StreamListener.open_attempt
        ) as opened,
    ):
        write_one_batch(spark, root, options, rows=ROWS, value="concat('value-', id)", deadline_s=_DEADLINE_S)
    tasks = [len(call.args[1]) for call in checked.call_args_list]
    encrypted = all(call.args[0].endpoint.encrypted for call in opened.call_args_list)
    print(json.dumps({"tasks": tasks, "encrypted": encrypted}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
