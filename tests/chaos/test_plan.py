"""The plan: the same seed gives the same faults, and every kind comes before any comes again."""

from __future__ import annotations

from itertools import islice

from tests.chaos.faults import KINDS, possible
from tests.chaos.plan import FILLERS, Planned, plan
from tests.chaos.world import JOBS

SHARES = {name: kind.share for name, kind in KINDS.items()}
SEEDS = range(20)


def first(count: int, seed: int, *, rotate: int = 0) -> list[Planned]:
    return list(islice(plan(seed, SHARES, rotate=rotate), count))


def test_a_seed_gives_the_same_plan_and_another_seed_another() -> None:
    assert first(300, 7) == first(300, 7)
    assert first(300, 7) != first(300, 8)


def test_the_first_round_has_every_kind() -> None:
    slow = sum(share.slow for share in SHARES.values())
    for seed in SEEDS:
        assert {planned.kind for planned in first(len(KINDS) + slow * FILLERS, seed)} == set(KINDS)


def test_two_halves_of_the_first_round_have_every_kind() -> None:
    """`--broker both` begins the second part where half of the round is over."""
    half, slow = len(KINDS) // 2, sum(share.slow for share in SHARES.values())
    for seed in SEEDS:
        parts = [first(half + slow * FILLERS, seed, rotate=rotate) for rotate in (0, half)]
        assert {planned.kind for part in parts for planned in part} == set(KINDS)


def test_while_a_driver_starts_spark_the_other_job_is_killed() -> None:
    planned = first(500, 3)
    fillers = {name for name, share in SHARES.items() if share.filler}
    for at, one in enumerate(planned[:-FILLERS]):
        if SHARES[one.kind].slow:
            assert {other.kind for other in planned[at + 1 : at + 1 + FILLERS]} <= fillers


def test_every_kind_says_whom_it_harms_and_a_job_alone_has_faults() -> None:
    for kind in KINDS.values():
        assert set(kind.jobs) <= set(JOBS)
        assert kind.share.weight > 0
    for job in JOBS:
        assert possible((job,)) == {name: kind for name, kind in KINDS.items() if job in kind.jobs} != {}
    assert possible(tuple(JOBS)) == KINDS
