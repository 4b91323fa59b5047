"""Access to the dashboard: who may log in, from which pages, and what a browser may do with a page.

On the loopback interface, users with an account on the machine need no login, as they can run ``spark-2pc`` too. On
other interfaces, and if a token is given, users log in with the token. Forms carry a CSRF token (Flask-WTF), the Host
header must be a name of this server (against DNS rebinding), and the Content-Security-Policy allows no scripts.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from flask import Flask, Response, redirect, render_template, request, session, url_for
from flask.typing import ResponseReturnValue
from flask_wtf.csrf import CSRFProtect
from werkzeug.exceptions import SecurityError

from spark_2pc_sink.web_server import REQUEST_BYTES_MAX

_log = logging.getLogger(__name__)

#: Lifetime of a login, and of an open form.
SESSION: Final = timedelta(hours=8)
_GRANTED: Final = "granted"
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; "
    "frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True)
class DashboardAccess:
    token: str | None = field(default=None, repr=False)
    hosts: Iterable[str] = ()

    def guard(self, app: Flask) -> None:
        app.config.update(
            SECRET_KEY=secrets.token_bytes(),
            SESSION_COOKIE_NAME="spark_2pc_dashboard",
            SESSION_COOKIE_HTTPONLY=True,
            SESSION_COOKIE_SAMESITE="Strict",
            PERMANENT_SESSION_LIFETIME=SESSION,
            WTF_CSRF_TIME_LIMIT=int(SESSION.total_seconds()),
            TRUSTED_HOSTS=["127.0.0.1", "localhost", *self.hosts],
            MAX_CONTENT_LENGTH=REQUEST_BYTES_MAX,
        )
        # Before the check of forms: without a login, requests only get the login page.
        app.before_request(self._check)
        CSRFProtect(app)
        app.after_request(_add_headers)
        app.add_url_rule("/login", "login", self._login, methods=["GET", "POST"])

    def is_let_in(self) -> bool:
        return self.token is None or bool(session.get(_GRANTED))

    def _check(self) -> ResponseReturnValue | None:
        """Redirect to the login if needed; None lets the request pass."""
        # Flask would raise it later, and cannot build page URLs until then.
        if isinstance(request.routing_exception, SecurityError):
            raise request.routing_exception
        if self.is_let_in() or request.endpoint in {"login", "static"}:
            return None
        return redirect(url_for("login"), 303)

    def _login(self) -> ResponseReturnValue:
        if self.token is None:
            return redirect(url_for("sinks"), 303)
        if request.method == "GET":
            return render_template("login.html", wrong=False)
        typed = request.form.get("token", "").strip()
        if not secrets.compare_digest(typed.encode(), self.token.encode()):  # in constant time
            _log.warning("login with a wrong token from %s", request.remote_addr)
            return render_template("login.html", wrong=True), 403
        session.clear()
        session.permanent = True
        session[_GRANTED] = True
        return redirect(url_for("sinks"), 303)


def _add_headers(response: Response) -> Response:
    response.headers.update(_HEADERS)
    return response
