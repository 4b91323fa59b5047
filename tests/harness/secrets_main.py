"""A driver of its own whose options have secrets: everything that it shows goes into one folder.

Usage: ``python -m tests.harness.secrets_main JOBS_JSON_FILE DIRECTORY``. Every logger of the driver and of its workers
is at its lowest level, and ``http.client`` prints what it sends, see `SITE`. Each job is a sink's options with
``expect``: the name of an error, or "". After them come the commands, by the options of the first job.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
import urllib.request
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

from prometheus_client.exposition import generate_latest
from prometheus_client.registry import CollectorRegistry
from pyspark.serializers import CloudPickleSerializer

from spark_2pc_sink import DualWriteSink
from spark_2pc_sink.cli import main as command
from spark_2pc_sink.errors import DualWriteError
from spark_2pc_sink.monitoring import Watched
from spark_2pc_sink.monitoring.dashboard.access import DashboardAccess
from spark_2pc_sink.monitoring.dashboard.app import make_app
from spark_2pc_sink.monitoring.exporter import SinkCollector
from spark_2pc_sink.sink.job.batch_size import SmallBatches
from spark_2pc_sink.testing.spark import start_spark
from tests.harness import ROOT
from tests.harness.streams import FileStream

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

#: Of each Python process, workers too: sitecustomize.py, which Python imports at its start.
SITE: Final = """
import http.client, logging, os
_handler = logging.FileHandler(os.path.join(os.environ["PLANTED_LOGS"], f"python-{os.getpid()}.log"))
_handler.setFormatter(logging.Formatter("%(name)s %(levelname)s %(message)s"))
logging.basicConfig(level=1, handlers=[_handler])
# A library that makes itself quiet is heard all the same, one that is born quiet too.
_set_level = logging.Logger.setLevel
logging.Logger.setLevel = lambda logger, level: _set_level(logger, 1)
http.client.HTTPConnection.debuglevel = 1
"""
#: As docs/logins.md has it.
REDACTED: Final = "(?i)secret|password|token|access[.]?key|spark_2pc"
SCHEMA: Final = "id BIGINT, name STRING, value STRING"
ROWS: Final = 300
_PAGES: Final = ("jobs/", "stages/", "storage/", "environment/", "executors/", "SQL/", "StreamingQuery/")
_COMMANDS: Final = (
    ["status"],
    ["status", "--json"],
    ["recover", "--take-over"],
    ["recover", "--dry-run", "--json"],
    ["verify", "--keys", "id"],
    ["verify", "--keys", "id", "--json"],
    ["history"],
    ["history", "--json"],
    ["check", "--topic", "t", "--table", "target"],
    ["state", "check"],
    ["transactions", "list", "--json"],
    ["runbook"],
)


def main(file: str, directory: str) -> None:
    """Run jobs and commands; the standard output and the folder have what they show."""
    root, jobs = Path(directory), json.loads(Path(file).read_text())
    # Rows go through tasks, whose functions are pickled.
    SmallBatches.expected = property(lambda _: False)  # type: ignore[assignment]
    spark = start_spark(
        root / "local",
        python_path=ROOT,
        quick=True,
        settings={
            "spark.ui.enabled": "true",
            "spark.ui.port": "0",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": str(root),
            "spark.eventLog.compress": "false",
            "spark.redaction.regex": REDACTED,
            "spark.executorEnv.ORDERS_PASSWORD": os.environ["PLANTED_IN_SPARK"],
            "spark.executorEnv.SPARK_2PC_DATABASE": f"postgresql://u:{os.environ['PLANTED_IN_SPARK']}@h/d",
        },
    )
    spark.sparkContext.setLogLevel("DEBUG")
    for number, options in enumerate(jobs):
        with _pickles_kept(root.parent / f"pickles-{number}"):
            _run(spark, root, options, number)
    _keep_pages(spark, root)
    spark.stop()
    _command_line(jobs[0], root)
    _watch(jobs[0], root)


def _run(spark: SparkSession, root: Path, options: dict[str, Any], number: int) -> None:
    expected, password_file = options.pop("expect"), options.pop("password_file", None)
    if password_file is not None:
        options["database_password"] = Path(password_file).read_text
    folder = root / f"job-{number}"
    folder.mkdir()
    stream = FileStream(spark, folder, spark.createDataFrame([], SCHEMA).schema)
    stream.add([(n, f"name-{n}", f"value-{n}") for n in range(ROWS)], partitions=2)
    found = ""
    try:
        sink = DualWriteSink(
            **options,
            topic="t",
            table="public.target",
            create_table=True,
            on_batch=lambda report: _keep_processes(root, report),
        )
        print(repr(sink), str(sink), vars(sink))
        stream.run(sink)
        sink.close()
    except DualWriteError as error:
        found = type(error).__name__
        traceback.print_exc()
        print(repr(error), asdict(error))
    if found != expected:
        message = f"job {number} ended with {found!r}, and was to end with {expected!r}"
        raise AssertionError(message)


@contextmanager
def _pickles_kept(folder: Path) -> Iterator[None]:
    """Keep all that goes to tasks, beside the folder: it is for Spark, and not for people."""
    folder.mkdir()
    original = CloudPickleSerializer.dumps

    def kept(serializer: CloudPickleSerializer, what: Any) -> bytes:
        pickled: bytes = original(serializer, what)  # type: ignore[no-untyped-call]
        (folder / f"{len(list(folder.iterdir()))}.bin").write_bytes(pickled)
        return pickled

    with mock.patch.object(CloudPickleSerializer, "dumps", kept):
        yield


def _keep_processes(root: Path, report: object) -> None:
    """The command lines of all processes while a job runs."""
    print(repr(report))
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            lines.append(path.read_bytes().replace(b"\0", b" "))
    (root / f"processes-{os.getpid()}.txt").write_bytes(b"\n".join(lines))


def _keep_pages(spark: SparkSession, root: Path) -> None:
    base, name = spark.sparkContext.uiWebUrl, spark.sparkContext.applicationId
    api = [f"api/v1/applications/{name}/{part}" for part in ("jobs", "stages", "environment", "sql?details=true")]
    plans = [f"SQL/execution/?id={number}" for number in range(30)]
    for number, page in enumerate((*_PAGES, *api, *plans)):
        with suppress(OSError), urllib.request.urlopen(f"{base}/{page}", timeout=30) as answer:  # noqa: S310 - our own
            (root / f"ui-{number}.html").write_bytes(answer.read())


def _command_line(options: dict[str, Any], root: Path) -> None:
    """Each command as a person runs it, with its log at DEBUG."""
    properties = root.parent / "command.properties"
    properties.write_text("".join(f"{name}={value}\n" for name, value in options["kafka"].items()))
    os.environ["SPARK_2PC_DATABASE"] = options["database"]
    for words in _COMMANDS:
        named = [] if words[0] in {"transactions", "runbook", "state"} else ["--transactional-id", "planted-0"]
        kafka = [] if words[0] in {"history", "state"} else ["--command-config", str(properties)]
        print(words, command([*words, *named, *kafka, "--log-level", "DEBUG"]))


def _watch(options: dict[str, Any], root: Path) -> None:
    watched = Watched(connections={name: options[name] for name in ("kafka", "database")}, timeout_s=20)
    registry = CollectorRegistry()
    registry.register(SinkCollector(watched))
    (root / "metrics.txt").write_bytes(generate_latest(registry))
    browser = make_app(watched, DashboardAccess()).test_client()
    for number, page in enumerate(("/", "/sink?id=planted-0", "/recover?id=planted-0")):
        answer = browser.get(page)
        (root / f"dashboard-{number}.html").write_text(f"{answer.status_code}\n{answer.text}")


if __name__ == "__main__":
    main(*sys.argv[1:])
