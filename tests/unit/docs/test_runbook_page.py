"""The answers of RUNBOOK.md lead through the runbook to the end that it promises."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from typing import Any

import pytest
import yaml

from jdbc_state import Actor
from spark_2pc_sink.choices import TABLE, HaltCause, problem_in
from spark_2pc_sink.runbook.conversation import Conversation, IncidentLog, RunbookEnd
from spark_2pc_sink.runbook.picture import Picture, Readers
from tests.harness.page_blocks import PAGE, Way, ways
from tests.unit.runbook.fake_sides import FakeSides, Script
from tests.unit.runbook.pictures import ALIVE, BLOCKED, HANGING, halted, in_doubt, owed, picture

TEXT = PAGE.read_text()
WAYS = ways()
ANSWERED = [way for way in WAYS if way.answers]
VALUES = {"ID": "orders", "…": "--bootstrap-server h:9092", "N": "7", "FIRST..LAST": "8..9"}
_REPLAYED = {"outcome_lost", "topic_remade", "resend_differs"}
#: What is left to the person at the end of a way, where its answers settle nothing by themselves.
BY_HAND = {
    *("driver_alive", "owed", "not_known", "kafka_out_of_reach", "database_out_of_reach", "readers_blocked"),
    *("id_in_use", "other_query", "not_the_first_batch", "gap", "batches_restarted", "replay_differs"),
    *("not_handed_over", *_REPLAYED),
}


def looks_of(name: str) -> list[Picture]:
    """What is seen of an incident, and after what the page tells to do."""
    made: dict[str, list[Picture]] = {
        "nothing_wrong": [picture()],
        "driver_alive": [in_doubt(driver=ALIVE)],
        "in_doubt": [in_doubt(), picture()],
        "owed": [owed()],
        "lost_row": [in_doubt("rebuild_row", before=None), picture()],
        "not_known": [Picture(transactional_id="orders")],
        "kafka_out_of_reach": [Picture(transactional_id="orders", kafka_problem="refused")],
        "database_out_of_reach": [Picture(transactional_id="orders", database_problem="refused")],
        "hanging_transaction": [picture(readers=Readers(hanging=(HANGING,))), picture()],
        "readers_blocked": [picture(readers=BLOCKED)],
        "other_query": [picture()],
        "commits_lost": [halted(HaltCause.DATABASE_BEHIND), picture()],
        "open_transaction": [halted(HaltCause.ID_IN_USE), halted(HaltCause.ID_IN_USE), picture()],
        "other_batch_owed": [owed(), picture()],
        "resend_differs": [owed(), owed()],
    }
    if name in made:
        return made[name]
    cause = HaltCause(name)
    return [picture() if TABLE[cause].job_only else halted(cause), owed() if name in _REPLAYED else picture()]


def alerts() -> list[dict[str, Any]]:
    """The alert rules for Prometheus."""
    rules = yaml.safe_load((PAGE.parent / "docker/prometheus/alerts.yml").read_text())
    return [rule for group in rules["groups"] for rule in group["rules"]]


def test_each_cause_has_its_answers() -> None:
    assert [way.incident for way in ANSWERED if way.incident in {cause.value for cause in HaltCause}] == list(HaltCause)


@pytest.mark.parametrize("way", ANSWERED, ids=lambda way: way.incident)
def test_the_answers_lead_through_the_runbook(way: Way) -> None:
    """Each question has the words of the page, none is left over, and the end is as the page says."""
    (command,) = way.commands
    words = way.words(command, VALUES)
    told = problem_in(words[words.index("--cause") + 1]) if "--cause" in words else None
    script = Script(way.stdin(VALUES).splitlines())
    now = datetime(2026, 11, 24, tzinfo=timezone.utc)
    protocol = IncidentLog(Actor(os_user="me", host="here", program="spark-2pc"), now=lambda: now)
    sides = FakeSides(*looks_of(way.incident))
    ending = Conversation(sides, script, protocol, told=told).run("orders")
    assert len(script.questions) == len(way.answers)
    for asked, (part, _) in zip(script.questions, way.answers, strict=True):
        assert part in asked
    left = [step.text for step in protocol.steps if step.kind == "left"]
    assert bool(left) is (way.incident in BY_HAND)
    assert (ending is RunbookEnd.SETTLED) is not bool(left)
    if way.options is not None:
        assert all(f"{name}=" in left[-1] for name in way.options)
    assert not any(step.kind == "failed" for step in protocol.steps)


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert["alert"])
def test_each_alert_has_a_section_that_it_names(alert: dict[str, Any]) -> None:
    """A section leads on: to a symptom, to what the error of a job says, or to what to do."""
    name = alert["alert"]
    assert alert["annotations"]["runbook"] == f"RUNBOOK.md#{name.lower()}"
    assert re.search(rf"^### {name}\n\n\S", TEXT, re.MULTILINE)


def test_each_command_is_for_an_incident() -> None:
    """So each is run by the tests of the incidents."""
    assert "```console\n" not in TEXT
    assert all(way.commands for way in WAYS)
