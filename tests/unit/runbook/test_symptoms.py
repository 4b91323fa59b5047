"""Symptoms: each picture has one name; what both sides show comes before what a person tells."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_2pc_sink.errors import HaltCause
from spark_2pc_sink.runbook.conversation import needs_care
from spark_2pc_sink.runbook.picture import Picture, Readers
from spark_2pc_sink.runbook.symptoms import ABOUT, TOLD_CAUSES, Symptom, cause_in, symptom_of
from tests.unit.docs.test_pages import texts_of_the_code
from tests.unit.runbook.pictures import (
    ALIVE,
    DEAD,
    HANGING,
    ROW,
    UNSEEN,
    WAITING,
    halted,
    in_doubt,
    owed,
    picture,
    report,
)

#: Those that status sees.
SHOWN_CAUSES = [cause for cause in HaltCause if cause not in TOLD_CAUSES]


@pytest.mark.parametrize("cause", HaltCause)
def test_each_cause_is_a_symptom_of_its_name(cause: HaltCause) -> None:
    assert Symptom(cause.value).value == cause.value


def test_each_symptom_is_explained() -> None:
    assert set(ABOUT) == set(Symptom)


@pytest.mark.parametrize("cause", SHOWN_CAUSES)
def test_a_cause_that_status_shows_names_the_symptom(cause: HaltCause) -> None:
    assert symptom_of(halted(cause)).value == cause.value


@pytest.mark.parametrize("cause", TOLD_CAUSES)
def test_a_cause_that_only_the_job_meets_is_told(cause: HaltCause) -> None:
    about_owed = cause in {HaltCause.OTHER_BATCH_OWED, HaltCause.RESEND_DIFFERS}
    seen = owed(told=cause) if about_owed else picture(told=cause)
    assert symptom_of(seen).value == cause.value


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
        (picture(HaltCause.OTHER_CLUSTER, elsewhere=True, cause=HaltCause.OTHER_CLUSTER), Symptom.OTHER_CLUSTER),
        (replace(picture(), kafka_problem="refused"), Symptom.KAFKA_OUT_OF_REACH),
        (replace(picture(), kafka_problem="refused", database_problem="too"), Symptom.DATABASE_OUT_OF_REACH),
        (Picture(transactional_id="orders", unreadable="database: status 'new'"), Symptom.UNREADABLE),
        (picture(readers=Readers(hanging=(HANGING,), waiting=(WAITING,))), Symptom.HANGING_TRANSACTION),
        (picture(readers=Readers(waiting=(WAITING,))), Symptom.READERS_STAND_STILL),
    ],
    ids=str,
)
def test_a_picture_has_one_name(seen: Picture, symptom: Symptom) -> None:
    assert symptom_of(seen) is symptom


@pytest.mark.parametrize(
    ("seen", "symptom"),
    [
        (in_doubt(told=HaltCause.GAP), Symptom.IN_DOUBT),
        (halted(HaltCause.DATABASE_BEHIND, told=HaltCause.COMMITS_LOST), Symptom.DATABASE_BEHIND),
        (owed(told=HaltCause.GAP), Symptom.OWED),
        (picture(told=HaltCause.RESEND_DIFFERS), Symptom.NOTHING_WRONG),
        (picture(told=HaltCause.DATABASE_BEHIND), Symptom.NOTHING_WRONG),
    ],
    ids=str,
)
def test_what_is_shown_comes_before_what_is_told(seen: Picture, symptom: Symptom) -> None:
    """A cause of another night, or one that is settled by now, chooses nothing."""
    assert symptom_of(seen) is symptom


def test_who_takes_an_id_over_is_asked_about_its_open_transaction() -> None:
    """Status sees only that the id is in use."""
    assert symptom_of(halted(HaltCause.ID_IN_USE, told=HaltCause.OPEN_TRANSACTION)) is Symptom.OPEN_TRANSACTION


@pytest.mark.parametrize(("cause", "words"), TOLD_CAUSES.items(), ids=str)
def test_the_error_of_a_job_is_recognised(cause: HaltCause, words: str) -> None:
    """By the words that are in the code which raises it."""
    assert words in texts_of_the_code()
    assert cause_in(f"HaltError: transactional id 'orders' needs a decision: … {words} 7 …") is cause
    assert cause_in(f" {cause.value.upper()} ") is cause


@pytest.mark.parametrize("text", ["", "none", "Connection refused"])
def test_other_words_name_no_cause(text: str) -> None:
    assert cause_in(text) is None


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


def test_a_driver_that_was_not_asked_for_does_not_live() -> None:
    assert not Picture(transactional_id="orders").driver_may_live
    assert not replace(picture(), report=report(driver=None)).driver_may_live
