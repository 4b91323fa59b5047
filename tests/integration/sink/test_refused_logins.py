"""A job that a broker does not let in, at its start or when it forwards records. Covers B25 (no hang)."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spark_2pc_sink.errors import TlsRefusedError
from spark_2pc_sink.sink.job.batch_size import SmallBatches
from spark_2pc_sink.sink.job.spark_batch import SparkBatch
from tests.conftest import or_skip
from tests.harness.secure_kafka import SecureKafka, plain_login
from tests.harness.streams import FileStream
from tests.integration.sink.targets import SCHEMA, Target, rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.kafka, pytest.mark.java]
#: max.block.ms is 60 s, and so long one retry would take.
AT_ONCE_S = 30


@pytest.fixture(scope="module")
def secure(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureKafka]:
    kafka = or_skip(pytestconfig, lambda: SecureKafka(tmp_path_factory.mktemp("certificates")))
    with kafka.broker as broker:
        broker.create_topic("t", partitions=3)
        yield kafka


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Without Spark's own, which shows each error of a function that it calls."""
    found = [record for record in caplog.records if record.levelno >= logging.WARNING]
    return [record.getMessage() for record in found if not record.name.startswith("py4j")]


@pytest.mark.thorough
def test_a_certificate_that_is_refused_while_records_are_forwarded_ends_the_query(
    spark: SparkSession,
    secure: SecureKafka,
    tmp_path: Path,
    database: str,
    transactional_id: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """B25: the file of authorities is replaced after the checks; the thread that forwards records connects again."""
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes((secure.folder / "authority.pem").read_bytes())
    monkeypatch.setattr(SmallBatches, "expected", False)
    original, jobs = SparkBatch._run_in_tasks, 0

    def replacing(self: SparkBatch, *arguments: object) -> object:
        nonlocal jobs
        jobs += 1
        trusted.write_bytes((secure.folder / "stranger.pem").read_bytes())
        return original(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(SparkBatch, "_run_in_tasks", replacing)
    stream, target = FileStream(spark, tmp_path, SCHEMA), Target(secure.broker, database, transactional_id, "t")
    stream.add(rows_of(0), partitions=2)
    properties = secure.properties("SASL_SSL", ssl_ca_location=str(trusted), **plain_login())
    began_s = time.monotonic()
    with pytest.raises(TlsRefusedError, match=r"subject .*CN=the broker.*set ssl\.ca\.location"):
        stream.run(target.sink(kafka=properties))
    assert time.monotonic() - began_s < AT_ONCE_S
    assert jobs == 1
    assert warnings(caplog) == []
    assert target.records() == []
