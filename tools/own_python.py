"""Make a folder with a Python environment, as ``make setup`` does with .venv/.

    python3 tools/own_python.py FOLDER

Python's own ``venv`` keeps what is in the folder. Over an environment of another Python it leaves that one's programs
there, or fails in ensurepip with "returned non-zero exit status 1". So such an environment is made anew here. One of
this Python is kept.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

_ASKED = "import sys; print('%s %d.%d' % ((sys.implementation.name,) + sys.version_info[:2]))"
_ANSWER_S_MAX = 60


def python_in(folder: Path) -> str | None:
    """Which Python an environment is of, as ``cpython 3.11``; None where there is no environment.

    What its program says counts. Of one that cannot be run any more, there is what was written when it was made.
    """
    try:
        made = (folder / "pyvenv.cfg").read_text()
    except FileNotFoundError:
        return None
    try:
        said = subprocess.run(
            [str(folder / "bin" / "python"), "-c", _ASKED],
            capture_output=True,
            text=True,
            timeout=_ANSWER_S_MAX,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        version = re.search(r"^version(?:_info)? *= *(\d+\.\d+)", made, re.MULTILINE)
        return f"a Python {version[1] if version else '?'} that is gone"
    return said.stdout.strip()


def main(words: list[str]) -> int:
    """Make it; the exit code."""
    try:
        (name,) = words
    except ValueError:
        sys.stderr.write(f"{__doc__}")
        return 2
    folder = Path(name)
    own = f"{sys.implementation.name} {sys.version_info[0]}.{sys.version_info[1]}"
    found = python_in(folder)
    anew = found is not None and found != own
    if anew:
        sys.stderr.write(f"setup: {name} is of {found}, and this is {own}: it is made anew\n")
    return subprocess.run([sys.executable, "-m", "venv", *(["--clear"] if anew else []), name], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
