"""A driver that is the orders example, as a user would start it, with a journal."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from spark_2pc_sink.testing.spark import quick_java_options
from tests.harness.driver_config import DriverConfig, Journal
from tests.harness.driver_faults import Faults
from tests.harness.driver_spark import WatchedSink, stop_inside_copy

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
#: Executors of one core, two of them at a time, so that a second driver finds room beside a stopped one.
_SUBMIT = {
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.cores.max": "2",
}


def run_example(config: DriverConfig, journal: Journal, faults: Faults) -> bool:
    """Run examples/orders_stream.py with the command line of ``config``, until it ends.

    Returns:
        False when the sink raised an error, which is in the journal then, or when the example's own comparison of
        both sides has found a difference.
    """
    sys.path.insert(0, str(EXAMPLES))
    import orders_stream  # noqa: PLC0415 - an example is no package

    stop_inside_copy(faults)
    java = dict.fromkeys(("spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions"), quick_java_options())
    settings = " ".join(f"--conf '{name}={value}'" for name, value in {**_SUBMIT, **java}.items())
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"{settings} pyspark-shell"
    sinks: list[WatchedSink] = []

    def make_sink(**options: object) -> WatchedSink:
        sinks.append(WatchedSink(journal, faults, **options))
        return sinks[-1]

    setattr(orders_stream, "DualWriteSink", make_sink)  # noqa: B010 - a class is not assignable for type checkers
    try:
        status = orders_stream.main(config.example)
    except Exception:
        if any(sink.failed for sink in sinks):
            return False
        raise
    if status:
        journal.write("error", type="Difference", text=f"the example ended with {status}")
    return status == 0
