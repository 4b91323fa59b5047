"""Symptoms: each picture has one name; what both sides show comes before what a person tells."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_2pc_sink.choices import TABLE, HaltCause, Symptom
from spark_2pc_sink.runbook.conversation import needs_care
from spark_2pc_sink.runbook.picture import Picture
from tests.unit.runbook.pictures import ALIVE, BLOCKED, DEAD, HANGING, ROW, UNSEEN, halted, in_doubt, owed, picture


@pytest.mark.parametrize("cause", HaltCause)
def test_each_cause_is_a_problem_of_its_name(cause: HaltCause) -> None:
    """What status shows, and what only the job meets and a person tells."""
    told = cause if TABLE[cause].job_only else None
    shown = owed if TABLE[cause].about_owed else picture
    assert (shown(told=told) if told else halted(cause)).problem is cause


@pytest.mark.parametrize(
    ("seen", "symptom"),
    [
        (picture(), Symptom.NOTHING_WRONG),
        (picture(driver=ALIVE), Symptom.NOTHING_WRONG),
        (in_doubt(driver=ALIVE), Symptom.DRIVER_ALIVE),
        (in_doubt(driver=UNSEEN, row=replace(ROW, age_s=10.0)), Symptom.DRIVER_ALIVE),
        (in_doubt(driver=UNSEEN), Symptom.IN_DOUBT),
        (in_doubt(driver=DEAD), Symptom.IN_DOUBT),
        (in_doubt(driver=None), Symptom.IN_DOUBT),
        (in_doubt("abort", status="done"), Symptom.IN_DOUBT),
        (in_doubt("abort", status="owed"), Symptom.IN_DOUBT),
        (in_doubt("rebuild_row", before=None), Symptom.LOST_ROW),
        (owed(), Symptom.OWED),
        (owed(driver=ALIVE), Symptom.DRIVER_ALIVE),
        (picture(known=False, before=None, row=None), Symptom.NOT_KNOWN),
        (Picture(transactional_id="orders"), Symptom.NOT_KNOWN),
        (picture(elsewhere=True, settled=False, cause=HaltCause.OTHER_CLUSTER), Symptom.ELSEWHERE),
        (picture(HaltCause.OTHER_CLUSTER, elsewhere=True, cause=HaltCause.OTHER_CLUSTER), HaltCause.OTHER_CLUSTER),
        (replace(picture(), kafka_problem="refused"), Symptom.KAFKA_OUT_OF_REACH),
        (replace(picture(), kafka_problem="refused", database_problem="too"), Symptom.DATABASE_OUT_OF_REACH),
        (Picture(transactional_id="orders", unreadable="database: status 'new'"), Symptom.UNREADABLE),
        (picture(readers=replace(BLOCKED, hanging=(HANGING,))), Symptom.HANGING_TRANSACTION),
        (picture(readers=BLOCKED), Symptom.READERS_BLOCKED),
        # What is shown comes before what is told: a cause of another night, or one that is settled, chooses nothing.
        (in_doubt(told=HaltCause.GAP), Symptom.IN_DOUBT),
        (halted(HaltCause.DATABASE_BEHIND, told=HaltCause.COMMITS_LOST), HaltCause.DATABASE_BEHIND),
        (owed(told=HaltCause.GAP), Symptom.OWED),
        (picture(told=HaltCause.RESEND_DIFFERS), Symptom.NOTHING_WRONG),
        (picture(told=HaltCause.DATABASE_BEHIND), Symptom.NOTHING_WRONG),
    ],
    ids=str,
)
def test_a_picture_has_one_name(seen: Picture, symptom: Symptom) -> None:
    assert seen.problem is symptom


@pytest.mark.parametrize(
    ("seen", "cared_for"),
    [
        (picture(), False),
        (in_doubt("abort", status="done", driver=ALIVE), False),
        (picture(elsewhere=True, cause=HaltCause.OTHER_CLUSTER), False),
        (in_doubt(driver=ALIVE), True),
        (in_doubt(), True),
        (Picture(transactional_id="every sink", database_problem="refused"), True),
    ],
    ids=str,
)
def test_a_sink_at_work_or_of_another_cluster_needs_nobody(seen: Picture, cared_for: bool) -> None:
    assert needs_care(seen) is cared_for
