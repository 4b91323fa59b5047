"""A broker's certificate that expires while a writer is connected."""

from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from spark_2pc_sink.errors import TlsRefusedError
from spark_2pc_sink.kafka.cluster import Cluster
from spark_2pc_sink.producer import TransactionalWriter
from tests.conftest import or_skip
from tests.harness.secure_kafka import SecureKafka
from tests.integration.writer.writers import commit_rows, committed, table_of, values

pytestmark = [pytest.mark.kafka, pytest.mark.java, pytest.mark.thorough]

#: For a broker's start and the first transaction.
LASTS = timedelta(seconds=30)


def test_a_certificate_expires_in_mid_run(pytestconfig: pytest.Config, tmp_path: Path, transactional_id: str) -> None:
    """B25: what is connected goes on, as TLS asks at its beginning only; a new connection names the date."""
    secure = or_skip(pytestconfig, lambda: SecureKafka(tmp_path))
    last = datetime.now(timezone.utc) + LASTS
    secure.date("EXPIRED", last)
    properties = secure.properties("EXPIRED")
    with secure.broker as broker:
        broker.create_topic("t", partitions=2)
        with TransactionalWriter(transactional_id=transactional_id, kafka=properties, topic="t") as writer:
            writer.init_transactions()
            writer.begin_transaction()
            writer.append(table_of(10))
            writer.flush()
            left_s = (last - datetime.now(timezone.utc)).total_seconds()
            assert left_s > 0, "the certificate expired before the transaction began"
            time.sleep(left_s + 1.5)
            writer.append(table_of(10, first=10))
            writer.commit_transaction()
        with Cluster(secure.options("EXPIRED")) as cluster, pytest.raises(TlsRefusedError, match="has expired"):
            cluster.features()
        secure.date("EXPIRED", last + timedelta(days=1))
        broker.restart()
        with TransactionalWriter(transactional_id=transactional_id, kafka=properties, topic="t") as writer:
            writer.init_transactions()
            commit_rows(writer, table_of(10, first=20))
        assert values(committed(broker.bootstrap, "t", transactional_id)) == sorted(f"value-{n}" for n in range(30))
