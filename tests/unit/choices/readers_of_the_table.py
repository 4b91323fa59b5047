"""What each reader of the table of choices shows of one cause: a program for `test_a_new_cause`."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

from jdbc_state import Actor
from spark_2pc_sink.choices import Facts, HaltCause, HaltError, problem_in
from spark_2pc_sink.cli.output import json_schema
from spark_2pc_sink.monitoring.dashboard.access import DashboardAccess
from spark_2pc_sink.monitoring.dashboard.app import make_app
from spark_2pc_sink.recovery.status import StatusReport
from spark_2pc_sink.runbook.conversation import Conversation
from spark_2pc_sink.runbook.protocol import IncidentLog
from tests.harness import ROOT
from tests.unit.monitoring.samples import Shown
from tests.unit.runbook.fake_sides import FakeSides, Script
from tests.unit.runbook.pictures import halted
from tools.reference_pages.choices import with_causes, with_sections
from tools.reference_pages.errors import errors_page


def shown(cause: HaltCause, says: str) -> dict[str, str]:
    """A text of each reader.

    Args:
        cause: what has halted a sink.
        says: words of the error.
    """
    error = HaltError(
        transactional_id="orders",
        cause=cause,
        database_side="done",
        kafka_side="Empty",
        reason=says,
        facts=Facts(batch=7),
    )
    seen = halted(cause)
    assert seen.report is not None
    report = seen.report.with_remedies("--transactional-id orders")
    script = Script(["stop"])
    log = IncidentLog(who=Actor(os_user="me", host="here", program="spark-2pc"))
    Conversation(FakeSides(replace(seen, report=report)), script, log).run("orders")
    pages = make_app(Shown(found=StatusReport(sinks=(report,))), DashboardAccess()).test_client()
    return {
        "error": str(error),
        "recover": str(report),
        "runbook": "\n".join(script.said),
        "told": str(problem_in(str(error)) is cause),
        "dashboard": pages.get("/recover?id=orders").text,
        "RUNBOOK.md": with_sections((ROOT / "RUNBOOK.md").read_text()),
        "docs/after-a-crash.md": with_causes((ROOT / "docs/after-a-crash.md").read_text()),
        "docs/reference/errors.md": errors_page(),
        "schema": json_schema(),
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(shown(HaltCause(sys.argv[1]), sys.argv[2])))
