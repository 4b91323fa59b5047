"""A query goes on while transaction.version goes up and down between its batches (KIP-890). B24."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from spark_2pc_sink.testing import ReferenceCoordinator
from tests.harness.kafka_tools import set_transaction_version
from tests.harness.streams import FileStream
from tests.integration.sink.targets import Target, rows_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tests.harness.providers import Broker

#: Before each batch; the last two without a change between them.
LEVELS = (0, 2, 0, 0)


@pytest.fixture(params=["reference", pytest.param("kafka", marks=[pytest.mark.kafka, pytest.mark.slow])])
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """A broker whose level nobody else minds."""
    if request.param == "kafka":
        yield request.getfixturevalue("start_kafka")()
        return
    with ReferenceCoordinator(keep_prepared=False) as reference:
        yield reference


def test_a_query_goes_on(stream: FileStream, broker: Broker, database: str, transactional_id: str) -> None:
    """B24: batches at level 0, 2 and 0 again, in one run; and the next run, at level 2."""
    target = Target(broker, database, transactional_id, broker.create_topic("orders", partitions=3))
    sink = target.sink(key="id")

    def write(batch: DataFrame, batch_id: int) -> None:
        set_transaction_version(broker.bootstrap, LEVELS[batch_id])
        sink(batch, batch_id)

    for number in range(len(LEVELS)):
        stream.add(rows_of(number, 50))
    stream.run(write)
    set_transaction_version(broker.bootstrap, 2)
    stream.add(rows_of(9, 50))
    stream.run(target.sink(key="id"))
    target.check([row for number in (0, 1, 2, 3, 9) for row in rows_of(number, 50)])
