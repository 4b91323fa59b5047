"""A Spark session on this machine: small, quiet, and isolated."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from spark_2pc_sink.testing.processes import archive_options, find_java_home, java_version

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: For a virtual machine that lives for seconds or minutes: long optimisation of its code would not pay off, nor does
#: verification of Spark's classes, a tenth of a start.
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"


def spark_environment(directory: Path, *, python_path: Path | None = None) -> dict[str, str]:
    """Additional environment variables for a process that starts Spark.

    Workers run this Python, and not the first on PATH; Java is a suitable one, and the driver does not listen on the
    network. ``directory`` is for Spark's shuffle files, ``python_path`` an additional one from which workers can
    import.
    """
    folders = [*([str(python_path)] if python_path else []), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        "JAVA_HOME": str(find_java_home()),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(folders),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(directory),
    }


def spark_settings(directory: Path, *, cores: int = 2) -> dict[str, str]:
    """Spark settings for one machine, with ``cores`` concurrent tasks; ``directory`` is for Spark's warehouse.

    The jars of Spark's Kafka connector and of PostgreSQL's JDBC driver are added if available
    (``$SPARK_2PC_SPARK_JARS``, else ``.cache/spark-jars``), for comparisons; the sink needs neither.
    """
    jars = _jars()
    return {
        "spark.master": f"local[{cores}]",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.jars": ",".join(str(jar) for jar in sorted(jars.glob("*.jar"))),
    }


def class_archive() -> Path:
    """Path of the class archive that halves a session's start time, if it has been created."""
    import pyspark  # noqa: PLC0415 - half a second that only users of Spark should pay

    return _jars() / f"classes-spark{pyspark.__version__}-java{java_version(find_java_home())}.jsa"


def quick_java_options() -> str:
    """Options for a driver or an executor that lives for seconds or minutes: `QUICK_JAVA`, and the archive if any."""
    return " ".join([QUICK_JAVA, *archive_options(class_archive())])


def _jars() -> Path:
    return Path(os.environ.get("SPARK_2PC_SPARK_JARS", ".cache/spark-jars")).absolute()


def start_spark(
    directory: Path,
    *,
    cores: int = 2,
    python_path: Path | None = None,
    quick: bool = False,
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """Start a session in this process, changing its environment. The caller stops it.

    With ``quick``, the session lives for seconds or minutes, see `quick_java_options`. ``settings`` override those of
    `spark_settings`; for the other arguments see `spark_environment`.
    """
    from pyspark.sql import SparkSession  # noqa: PLC0415 - half a second that only users of Spark should pay

    os.environ.update(spark_environment(directory, python_path=python_path))
    builder = SparkSession.builder.appName("spark-2pc-sink")
    java = {"spark.driver.extraJavaOptions": quick_java_options()} if quick else {}
    for name, value in {**spark_settings(directory, cores=cores), **java, **(settings or {})}.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session
