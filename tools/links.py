"""Do links out of the manual still lead somewhere? ``make links``.

python -m tools.links

Sphinx asks for each. Exit code 1: some are broken, and are listed. Exit code 2: this machine has no network, so none
could be asked, which says nothing about them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
FOLDER: Final = ROOT / "build" / "links"
_ANSWERED: Final = {"working", "redirected"}
_BAD: Final = {"broken", "timeout"}
#: What requests says of a host that it has not reached; a host that answers has a status in place of it.
_UNREACHED: Final = ("Max retries exceeded", "Read timed out", "ProxyError", "Connection aborted")


def verdict(links: Iterable[dict[str, Any]]) -> tuple[int, str]:
    """Exit code, and what to print of the lines of Sphinx's output.json."""
    outside = [link for link in links if link["uri"].startswith(("http://", "https://"))]
    answered = [link for link in outside if link["status"] in _ANSWERED]
    bad = [link for link in outside if link["status"] in _BAD]
    if bad and not answered and all(any(text in link["info"] for text in _UNREACHED) for link in bad):
        return 2, f"no network: none of {len(bad)} links could be asked; the first says: {bad[0]['info'][:200]}"
    if not bad:
        return 0, f"{len(answered)} links lead somewhere"
    lines = [f"{link['filename']}:{link['lineno']}: {link['uri']}: {link['info'][:200]}" for link in bad]
    return 1, "\n".join([*lines, f"{len(bad)} of {len(bad) + len(answered)} links are broken"])


def main() -> int:
    """Ask for each link; the exit code."""
    command = [sys.executable, "-m", "sphinx", "-q", "--keep-going", "-b", "linkcheck", "-c", "docs", ".", str(FOLDER)]
    found = FOLDER / "output.json"
    found.unlink(missing_ok=True)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if not found.exists():
        sys.stderr.write(done.stdout + done.stderr)
        return done.returncode or 1
    code, text = verdict(json.loads(line) for line in found.read_text().splitlines())
    sys.stdout.write(f"{text}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
