"""The cheap job: the batch driver and its recovery without Spark, which is back in a moment."""

from __future__ import annotations

import random
from pathlib import Path

from spark_2pc_sink import VerifyReport, verify
from spark_2pc_sink.testing import MultisetDifference, multiset_difference, read_topic
from tests.chaos.jobs import ChaosJob, Sides
from tests.harness.driver_config import END
from tests.harness.driver_job import Job, make_rows
from tests.harness.driver_process import DriverProcess, Nursery
from tests.harness.providers import Broker

NAME = "rows"
#: The topic, and how many partitions it has.
TOPICS = {NAME: 3}
#: Rows of a batch: also none, and more than COPY keeps in buffers.
SIZES = (20, 20, 0, 5, 100, 600)
#: Batches that wait for the driver.
_AHEAD = 4
#: Calls of `feed` for each new batch.
_FEEDS_PER_BATCH = 2
_READ_DEADLINE_S = 300.0


class RowsJob(ChaosJob):
    back_deadline_s = 120.0

    def __init__(self, broker: Broker, sides: Sides, folder: Path, nursery: Nursery, seed: int) -> None:
        super().__init__(NAME, sides, folder)
        self._sizes = random.Random(f"rows {seed}")
        # No primary key: nothing but the sink keeps rows from being there twice.
        self._job = Job(
            broker=broker,
            database=sides.database,
            topic=self.topic,
            transactional_id=NAME,
            folder=folder,
            nursery=nursery,
            follow=True,
            table=NAME,
        ).create((), primary_key=False)
        self._done = self._feeds = 0

    def launch(self, folder: Path) -> DriverProcess:
        kafka = {"bootstrap.servers": self.sides.proxied_kafka}
        return self._job.start(folder=folder, kafka=kafka, database=self.sides.proxied_database)

    def feed(self) -> None:
        while (self._job.checkpoint / str(self._done)).exists():
            self._done += 1
        self._feeds += 1
        if self._feeds % _FEEDS_PER_BATCH == 0 and self._job.batches - self._done < _AHEAD:
            self._job.write_batch(self._job.batches, make_rows(self._job.batches, self._sizes.choice(SIZES)))
            self._job.batches += 1

    def finish(self) -> None:
        """Say that there are no more batches."""
        (self._job.folder / "input" / END).touch()

    def compare(self) -> dict[str, MultisetDifference]:
        expected = [row for rows in self._job.input().values() for row in rows]
        records = read_topic(self.sides.kafka, self.topic, deadline_s=_READ_DEADLINE_S)
        found = [(int((record.key or b"").decode()), (record.value or b"").decode()) for record in records]
        stored = self._job.sql(f"SELECT id, payload FROM {NAME}")
        return {"Kafka": multiset_difference(found, expected), "PostgreSQL": multiset_difference(stored, expected)}

    def verify(self) -> VerifyReport:
        """With what this driver, unlike a sink, has not noted."""
        return verify(
            transactional_id=NAME,
            kafka={"bootstrap.servers": self.sides.kafka},
            database=self.sides.database,
            table=NAME,
            mode="append",
            record_columns="id = key::bigint, payload = value_text",
        )
