"""What ``spark-2pc`` has said, the words that name a job's sides, and a printed line pasted into a shell."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sqlalchemy import make_url

from tests.harness import ROOT
from tests.harness.driver_job import Job
from tests.harness.incidents import Incident
from tests.harness.json_contract import read_output

#: A recovery looks for a driver for 5 s; the rest is for a machine that is busy with ten other things.
_DEADLINE_S: Final = 120


@dataclass(frozen=True)
class Said:
    """What a command has said.

    Attributes:
        code: its exit code.
        out: its standard output.
        err: its standard error.
    """

    code: int
    out: str
    err: str

    def __str__(self) -> str:
        return f"exit code {self.code}\n{self.out}\n{self.err}"

    @property
    def fields(self) -> dict[str, Any]:
        """The object that ``--json`` prints."""
        return read_output(self.out)


def place_of(job: Job) -> str:
    """The words that name both sides, as RUNBOOK.md has ``…``."""
    return shlex.join(["--bootstrap-server", job.broker.bootstrap, *database_of(job)])


def database_of(job: Job) -> list[str]:
    """The words that name the database."""
    url = make_url(job.database)
    return ["--database", f"postgresql://{url.username}@{url.host}:{url.port}/{url.database}"]


def values_of(incident: Incident) -> Mapping[str, str]:
    """What RUNBOOK.md's placeholders stand for."""
    return {"…": place_of(incident.job), "ID": incident.job.transactional_id, **incident.words}


def password_of(job: Job) -> str:
    """Of the database; libpq takes it from PGPASSWORD."""
    return str(make_url(job.database).password)


def paste(job: Job, line: str) -> Said:
    """Paste a printed line into a shell, as it is; no password is in it."""
    # The command is where this interpreter is, and its package is the one under test.
    programs = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    done = subprocess.run(
        ["bash", "-c", line],
        env={**os.environ, "PATH": programs, "PYTHONPATH": str(ROOT), "PGPASSWORD": password_of(job)},
        capture_output=True,
        text=True,
        timeout=_DEADLINE_S,
        check=False,
    )
    return Said(done.returncode, done.stdout, done.stderr)
