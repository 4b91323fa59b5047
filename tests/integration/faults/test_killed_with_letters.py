"""The driver is killed with a dead letter in the batch; at the end each row and each letter is there once."""

from __future__ import annotations

import json
from typing import Any

from spark_2pc_sink.recipe.steps import Step
from spark_2pc_sink.testing import assert_same_multiset, read_topic
from tests.conftest import MakeTopic
from tests.harness.driver_job import Job, make_rows
from tests.harness.driver_rows import BAD, is_bad
from tests.harness.providers import Broker
from tests.integration.faults.conftest import MakeJob

#: The batch that is killed; the third has bad rows alone.
BATCH = 1
_KEY = "query_id, batch_id, identity, occurrences, reason, sqlstate"
#: Reached in the attempt that meets the bad row too: the second time there are letters.
_TWICE = (Step.PLACE, Step.BEGIN, Step.PRODUCE, Step.PREPARE)


def job_with(make_job: MakeJob, broker: Broker, letters: str) -> tuple[Job, dict[str, Any]]:
    """A job of four batches, of which the second has two bad rows, and the third nothing but one; and its options."""
    job = make_job(broker, sizes=(10, 10, 0, 10), primary_key=False)
    bad = [(BATCH * 1_000 + number, f"{BAD} äö€ {number}") for number in range(2)]
    job.write_batch(BATCH, [*make_rows(BATCH, 10), *bad])
    job.write_batch(2, [(2_000, f"{BAD} alone")])
    return job, {"bad_rows": "dead_letter", "dead_letter_topic": letters}


def check(job: Job, options: dict[str, Any]) -> None:
    """Rows and records as everywhere; the letters of topic and table are those of the bad rows, each once."""
    given = job.input()
    job.check({batch: [row for row in rows if not is_bad(row)] for batch, rows in given.items()})
    bad = [(batch, row[0]) for batch, rows in given.items() for row in rows if is_bad(row)]
    records = read_topic(job.broker.bootstrap, options["dead_letter_topic"])
    told = [json.loads(record.value or b"") for record in records]
    assert_same_multiset([(each["batch_id"], each["row"]["id"]) for each in told], bad, what="letters in the topic")
    in_table = job.sql(f"SELECT {_KEY} FROM kafka_transaction_state_dead_letters")
    in_topic = [tuple(each[name] for name in _KEY.split(", ")) for each in told]
    assert_same_multiset(in_table, in_topic, what="letters in the table")


def kill(job: Job, step: Step, options: dict[str, Any]) -> None:
    """Kill a driver after a step of the batch, in the attempt that has the letters."""
    job.kill_at(f"step:{step.name}", batch=BATCH, nth=2 if step in _TWICE else 1, **options)


def test_killed_where_nothing_is_decided_and_where_all_is(
    kafka_without_2pc: Broker, make_job: MakeJob, topic: MakeTopic
) -> None:
    """A1, A26, D2: before the decision no letter is left; behind it they are sent again, from the table."""
    job, options = job_with(make_job, kafka_without_2pc, topic(partitions=2, broker=kafka_without_2pc))
    kill(job, Step.PRODUCE, options)
    kill(job, Step.DECIDE, options)
    # As if the transaction had timed out: Kafka owes the batch.
    job.terminate()
    assert job.run(**options).placements[0] == (BATCH, "RESEND")
    check(job, options)
