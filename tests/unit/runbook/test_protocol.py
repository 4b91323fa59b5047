"""The protocol: every step with its time, for people and for programs, saved as it comes."""

from __future__ import annotations

import json
from datetime import datetime, timezone

from jdbc_state import Actor
from spark_2pc_sink.runbook.protocol import IncidentLog

ME = Actor(os_user="me", host="here", program="spark-2pc")
AT = datetime(2026, 11, 24, 3, 7, tzinfo=timezone.utc)


def test_a_protocol_is_saved_after_each_step() -> None:
    saved: list[list[str]] = []
    protocol = IncidentLog(who=ME, save=lambda given: saved.append([step.kind for step in given.steps]))
    protocol.note("saw", "in doubt")
    protocol.note("did", "committed")
    assert saved == [["saw"], ["saw", "did"]]


def test_a_protocol_as_json() -> None:
    protocol = IncidentLog(who=ME, now=lambda: AT)
    protocol.note("saw", "orders: in doubt", symptom="in_doubt", report=None)
    assert json.loads(json.dumps(protocol.as_json())) == {
        "os_user": "me",
        "host": "here",
        "program": "spark-2pc",
        "steps": [
            {
                "at": "2026-11-24T03:07:00+00:00",
                "kind": "saw",
                "text": "orders: in doubt",
                "symptom": "in_doubt",
                "report": None,
            }
        ],
    }
