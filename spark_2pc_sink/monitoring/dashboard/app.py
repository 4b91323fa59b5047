"""The dashboard: the pages of all sinks, one sink and its recovery, served by waitress until it is stopped."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from datetime import datetime, timezone
from http import HTTPStatus
from typing import Final

from flask import Flask, abort, render_template, request
from flask.typing import ResponseReturnValue
from sqlalchemy.engine import make_url
from werkzeug.exceptions import HTTPException, SecurityError

from spark_2pc_sink.choices import TABLE, Act, Choice, HaltError, Symptom
from spark_2pc_sink.errors import DualWriteError, TakeOverRefusedError
from spark_2pc_sink.monitoring import Watched
from spark_2pc_sink.monitoring.dashboard import sink_views
from spark_2pc_sink.monitoring.dashboard.access import DashboardAccess
from spark_2pc_sink.monitoring.dashboard.sink_views import TONES, badge, bar_chart
from spark_2pc_sink.recovery.report import RecoveryReport
from spark_2pc_sink.web_server import serve_until_stopped

#: Lines of the history and of the actions on a sink's page.
LINES_SHOWN: Final = 40
#: Number of batches listed as text; the charts show all lines.
BATCHES_LISTED: Final = 12
#: Reload interval of a page, if enabled.
REFRESH_S: Final = 10


def make_app(watched: Watched, access: DashboardAccess) -> Flask:
    app = Flask(__name__)
    access.guard(app)
    app.jinja_env.filters.update(
        {name: getattr(sink_views, name) for name in ("duration", "instant", "name", "number")}
    )
    app.jinja_env.globals.update({name: getattr(sink_views, name) for name in ("badge", "pending", "driver_line")})
    app.context_processor(
        lambda: {
            "sides": _sides(watched),
            "now": datetime.now(timezone.utc),
            "refresh_s": REFRESH_S if request.args.get("refresh") == "on" and request.method == "GET" else None,
            "let_in": access.is_let_in(),
        }
    )
    app.register_error_handler(
        HTTPException, lambda error: _problem(error.name, error.description or "", error.code or 500)
    )
    app.register_error_handler(SecurityError, _wrong_host)
    app.register_error_handler(
        DualWriteError, lambda error: _problem("A side refused", str(error), HTTPStatus.BAD_GATEWAY)
    )
    pages = _Pages(watched)
    app.add_url_rule("/", "sinks", pages.sinks)
    app.add_url_rule("/sink", "sink", pages.sink)
    app.add_url_rule("/recover", "recover", pages.recover, methods=["GET", "POST"])
    return app


@dataclass
class _Pages:
    watched: Watched
    #: One recovery at a time: two simultaneous requests are claimed one after the other.
    recovering: threading.Lock = field(default_factory=threading.Lock)

    def sinks(self) -> ResponseReturnValue:
        found = self.watched.look()
        ordered = sorted(found.sinks, key=lambda sink: (TONES.index(badge(sink).tone), sink.transactional_id))
        return render_template("sinks.html", found=found, ordered=ordered)

    def sink(self) -> ResponseReturnValue:
        transactional_id = _asked_id()
        found = self.watched.look(transactional_id)
        lines, actions = [], []
        if not found.database_problem:
            with self.watched.store() as store:
                lines = store.read_history(transactional_id, last=LINES_SHOWN)
                actions = store.read_actions(transactional_id, last=LINES_SHOWN)
        rows, steps = sink_views.batch_bars(lines)
        return render_template(
            "sink.html",
            found=found,
            transactional_id=transactional_id,
            sink=found.sinks[0] if found.sinks else None,
            batches=lines[:BATCHES_LISTED],
            actions=actions,
            rows_chart=bar_chart(rows, name="rows of each batch", unit=""),
            steps_chart=bar_chart(steps, name="seconds of each batch by steps", unit="s"),
            steps=(*sink_views.SHOWN_STEPS, sink_views.OTHER_STEPS),
        )

    def recover(self) -> ResponseReturnValue:
        """Show what a recovery would do; on POST, recover."""
        transactional_id = _asked_id()
        with self.recovering:
            look = self.watched.look(transactional_id)
            if look.kafka_problem or look.database_problem or not look.sinks:
                return render_template("sink.html", found=look, transactional_id=transactional_id), HTTPStatus.CONFLICT
            found = look.sinks[0]
            if request.method == "GET":
                return _form(found)
            chosen = {choice.name: choice for choice in choices(found)}.get(request.form.get("choice", ""))
            wrong = _refusal(found, chosen)
            if wrong or chosen is None:
                return _form(found, wrong=wrong), HTTPStatus.CONFLICT
            reason = request.form.get("reason", "").strip() or None
            report: RecoveryReport | None
            problem = ""
            try:
                report = self.watched.recover(transactional_id, reason=reason, **chosen.options)
            except (HaltError, TakeOverRefusedError) as error:
                report, problem = error.report, str(error)
        status = HTTPStatus.OK if report is not None and report.settled else HTTPStatus.CONFLICT
        return render_template(
            "recovered.html", sink=report, transactional_id=transactional_id, problem=problem, chosen=chosen
        ), status


def choices(found: RecoveryReport) -> tuple[Choice, ...]:
    """The choices that a page can carry out: always safe, or about the driver or one batch, which the page shows."""
    # Those that need more (adopting a row, naming batches that a database lost) are left to ``spark-2pc runbook``.
    problems = [found.problem]
    if found.actions and found.driver is not None and found.driver.alive is None:
        # The recovery decides by the age of the row.
        problems = [Symptom.IN_DOUBT, Symptom.DRIVER_ALIVE]
    return tuple(
        choice
        for problem in problems
        for choice in TABLE[problem].choices_for(found.incident)
        if choice.act is Act.RECOVER and not choice.inputs and set(choice.options) in _CARRIED_OUT
    )


#: Options of choices that a page can carry out.
_CARRIED_OUT: Final[tuple[set[str], ...]] = (set(), {"take_over"}, {"batch", "decision"})


def fingerprint(found: RecoveryReport) -> str:
    """The state that a choice refers to; a form is refused if the state has changed."""
    row = found.row
    if row is None:
        return "no row"
    cause = "" if found.cause is None else found.cause.value
    kafka = "" if found.kafka is None else found.kafka.state.value
    parts = (row.generation, row.decision, row.status, row.batch_id, row.prepared_transaction_state, kafka, cause)
    return "|".join(map(str, parts))


def _form(found: RecoveryReport, *, wrong: str = "") -> str:
    return render_template(
        "recover.html",
        sink=found,
        transactional_id=found.transactional_id,
        problem=TABLE[found.problem],
        choices=choices(found),
        seen=fingerprint(found),
        wrong=wrong,
        given=request.form,
    )


def _refusal(found: RecoveryReport, chosen: Choice | None) -> str:
    form = request.form
    if form.get("seen") != fingerprint(found):
        return "Both sides have changed since this page was loaded. Nothing was done: check them, and choose again."
    if chosen is None:
        return "Choose what to do. Nothing was done."
    if form.get("typed", "").strip() != found.transactional_id:
        return "The typed id is not the id of this sink. Nothing was done."
    if chosen.accepts and not form.get("reason", "").strip():
        return "This choice needs a reason, which is recorded with your choice. Nothing was done."
    return ""


def _asked_id() -> str:
    """The transactional id in the URL, or in the form; it may be any text."""
    return request.values.get("id") or abort(HTTPStatus.NOT_FOUND)


def _sides(watched: Watched) -> dict[str, str]:
    """The addresses of both sides, without credentials."""
    url = make_url(watched.connections["database"])
    place = f"{url.host or 'local socket'}{f':{url.port}' if url.port else ''}"
    return {"kafka": ", ".join(watched.options().kafka.bootstrap_servers), "database": f"{place}/{url.database or ''}"}


def _problem(title: str, text: str, code: int) -> ResponseReturnValue:
    return render_template("problem.html", title=title, text=text), code


def _wrong_host(error: SecurityError) -> ResponseReturnValue:  # noqa: ARG001 - the signature of a handler
    """Answer in plain text: pages are not served under a foreign host name."""
    text = f"{request.environ.get('HTTP_HOST', 'no name')} is not a name of this server; --host-name adds one\n"
    return text, HTTPStatus.BAD_REQUEST, {"Content-Type": "text/plain; charset=utf-8"}


def serve(watched: Watched, access: DashboardAccess, host: str, port: int) -> None:
    serve_until_stopped(make_app(watched, access), host, port, scheme="http://")
