"""Random sequences of requests, compared answer by answer with Apache Kafka."""

from __future__ import annotations

import os

import pytest

from spark_2pc_sink.testing import ReferenceCoordinator
from tests.conformance.fuzz import Fuzzer
from tests.conformance.lockstep import KINDS, STEPS, draw
from tests.conformance.servers import KAFKA_PROPERTIES
from tests.conftest import StartKafka

#: By transaction.version; most clients are at 2.
SEQUENCES = {2: int(os.environ.get("FUZZ_SEQUENCES", "80")), 1: 20, 0: 20}
#: Of the first sequence; another one looks elsewhere.
SEED = int(os.environ.get("FUZZ_SEED", "1"))


def test_a_seed_gives_the_same_sequence() -> None:
    assert draw(7) == draw(7) != draw(8)
    assert len(draw(7)) == STEPS


def test_every_kind_of_request_is_drawn() -> None:
    drawn = {step.kind for seed in range(100) for step in draw(seed)}
    assert drawn == {*KINDS, "repeat"}


@pytest.mark.thorough
def test_two_servers_that_differ_are_told_apart(start_kafka: StartKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """One refuses 2PC: the difference is found, and the shortest sequence is the one request that shows it."""
    monkeypatch.setattr("tests.conformance.fuzz.WORKERS", 1)
    shipped = start_kafka(properties={"unstable.api.versions.enable": "true", **KAFKA_PROPERTIES})
    granting = start_kafka(two_phase_commit=True, properties=KAFKA_PROPERTIES)
    told: list[str] = []
    outcome = Fuzzer(shipped.bootstrap, granting.bootstrap).run(1, 20, say=told.append)
    assert outcome.findings
    assert {step.kind for finding in outcome.findings for step in finding.steps} == {"init two-phase"}
    assert f"FUZZ_SEED={outcome.findings[0].seed} " in told[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    "level", [pytest.param(0, marks=pytest.mark.thorough), pytest.param(1, marks=pytest.mark.thorough), 2]
)
def test_the_reference_coordinator_answers_as_kafka(level: int, start_kafka: StartKafka) -> None:
    kafka = start_kafka(transaction_version=level, two_phase_commit=True, properties=KAFKA_PROPERTIES)
    with ReferenceCoordinator(transaction_version=level, keep_prepared=False) as reference:
        outcome = Fuzzer(reference.bootstrap, kafka.bootstrap, level=level).run(SEED, SEQUENCES[level])
    print(outcome)
    assert outcome.sequences == SEQUENCES[level]
    assert not outcome.findings, "\n\n".join(map(str, outcome.findings))
