"""The archives that halve the start of a broker and of Spark."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pyspark
import pytest

from spark_2pc_sink.testing.spark import quick_java_options, spark_environment
from tests.harness.class_archive import make_kafka_archive, make_spark_archive


def test_a_broker_s_is_made_once(brokers: object) -> None:
    """``make setup`` makes it; a second call finds it."""
    archive = make_kafka_archive()
    made = archive.stat().st_mtime_ns
    assert make_kafka_archive() == archive
    assert archive.stat().st_mtime_ns == made


@pytest.mark.java
def test_spark_s_is_made_once_and_fits(tmp_path: Path) -> None:
    """A virtual machine that may not run without it does run."""
    archive = make_spark_archive()
    made = archive.stat().st_mtime_ns
    assert make_spark_archive() == archive
    assert archive.stat().st_mtime_ns == made
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    options = f"{quick_java_options()} -Xshare:on".replace("-Xlog:disable", "")
    started = subprocess.run(
        [submit, "--driver-java-options", options, "--version"],
        env={**os.environ, **spark_environment(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert f"version {pyspark.__version__}" in started.stderr, started.stdout + started.stderr
