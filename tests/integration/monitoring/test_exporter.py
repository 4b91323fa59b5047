"""``spark-2pc exporter`` against real servers: its figures are those of the incident, and an outage is one of them."""

from __future__ import annotations

import time
import urllib.request
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from spark_2pc_sink import recover
from tests.conftest import StartKafka
from tests.harness.driver_job import SMALL_INPUT, Job
from tests.integration.faults.conftest import MakeJob
from tests.integration.monitoring.conftest import Serve

#: For a look with a side that is out of reach, and what a scrape may take in addition; for one where both answer.
TIMEOUT_S, BESIDE_S, ANSWERS_S = 4, 4, 50


@dataclass(frozen=True)
class Scrape:
    """What one scrape has found: values by name and labels."""

    values: dict[tuple[str, tuple[tuple[str, str], ...]], float]

    @classmethod
    def of(cls, address: str) -> Scrape:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=60) as answer:
            families = list(text_string_to_metric_families(answer.read().decode()))
        samples = [sample for family in families for sample in family.samples]
        return cls({(sample.name, tuple(sorted(sample.labels.items()))): sample.value for sample in samples})

    def one(self, name: str, **labels: str) -> float | None:
        return self.values.get((f"spark_2pc_{name}", tuple(sorted(labels.items()))))

    def of_sink(self, job: Job, name: str, **labels: str) -> float | None:
        return self.one(f"sink_{name}", transactional_id=job.transactional_id, **labels)


def test_an_incident_is_in_the_figures_and_so_is_its_end(
    start_kafka: StartKafka, make_job: MakeJob, serve: Serve
) -> None:
    """Of a job whose driver was killed right after its second decision; at the end Kafka is out of reach."""
    broker = start_kafka()
    job = make_job(broker)
    job.kill_at("step:DECIDE", batch=1)
    address = serve("exporter", job, "--timeout", str(ANSWERS_S))
    before = Scrape.of(address)
    assert (before.one("database_up"), before.one("kafka_up"), before.one("sinks")) == (1, 1, 1)
    assert (before.of_sink(job, "in_doubt_seconds") or 0) > 0
    assert before.of_sink(job, "driver_up") == 0
    assert before.of_sink(job, "claims_total") == 1
    assert before.of_sink(job, "batches_total") == 0, "counting begins at the first look"
    recover(transactional_id=job.transactional_id, kafka={"bootstrap.servers": broker.bootstrap}, database=job.database)
    job.run()
    after = Scrape.of(address)
    assert (after.of_sink(job, "in_doubt_seconds"), after.of_sink(job, "prepared_seconds")) == (0, 0)
    assert after.of_sink(job, "claims_total") == 3, "of the two drivers, and of the recovery"
    # The batch that was in doubt at the first look, the empty one, and the last.
    assert after.of_sink(job, "batches_total") == 3
    assert after.of_sink(job, "rows_total") == SMALL_INPUT[1] + SMALL_INPUT[3]
    assert after.of_sink(job, "resends_total") == 0
    # Of batches that a driver took through their steps, the empty one too, not of those that were recovered.
    assert after.of_sink(job, "batch_seconds_count") == 2
    steps = {dict(labels)["step"] for name, labels in after.values if name == "spark_2pc_sink_batch_step_seconds_sum"}
    assert steps >= {"place", "begin", "produce", "prepare", "decide", "complete"}

    hasty = serve("exporter", job, "--timeout", str(TIMEOUT_S))
    broker.kill()
    begun_s = time.monotonic()
    found = Scrape.of(hasty)
    assert time.monotonic() - begun_s < TIMEOUT_S + BESIDE_S
    assert (found.one("database_up"), found.one("kafka_up")) == (1, 0)
    assert found.of_sink(job, "claims_total") == 3, "the database alone knows it"
