"""Known vulnerabilities of what is locked, by pip-audit; and whether the service that it asks knows any at all.

python tools/audit.py PIP_AUDIT LOCK [ARGUMENT…]

Exit code 0: it was asked about each package, and knows of nothing. 1: it knows of something. 2: it could not be asked.
A mirror of the package index often answers without vulnerabilities, which looks the same as good news. So it is first
asked about a release that is known to have some.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

#: CVE-2018-18074 and others: https://osv.dev/list?q=requests
KNOWN: Final = "requests==2.19.0"
_DEADLINE_S: Final = 600


class NotAskedError(Exception):
    """The service gave no answer."""


def ask(program: str, requirements: Path, *arguments: str) -> list[dict[str, Any]]:
    """What the service says of each package.

    Raises:
        NotAskedError: it could not be asked, about one of them at least.
    """
    command = [program, "--disable-pip", "--format", "json", "--progress-spinner", "off", *arguments]
    done = subprocess.run(
        [*command, "--requirement", str(requirements)],
        capture_output=True,
        text=True,
        timeout=_DEADLINE_S,
        check=False,
    )
    try:
        packages: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        said = [line for line in done.stderr.splitlines() if line.strip()] or ["pip-audit said nothing"]
        raise NotAskedError(said[-1]) from None
    skipped = [each["skip_reason"] for each in packages if "skip_reason" in each]
    if skipped:
        raise NotAskedError(skipped[0])
    return packages


def check_service(program: str) -> None:
    """Return where the service knows of vulnerabilities.

    Raises:
        NotAskedError: it has none for a release that has some, or could not be asked.
    """
    with tempfile.TemporaryDirectory() as folder:
        requirements = Path(folder) / "known.txt"
        requirements.write_text(f"{KNOWN}\n")
        packages = ask(program, requirements, "--no-deps")
    if not any(each["vulns"] for each in packages):
        raise NotAskedError(f"it knows of none of {KNOWN}, which has some")


def main(program: str, lock: str, *arguments: str) -> int:
    """Ask, and print what was found."""
    try:
        check_service(program)
        packages = ask(program, Path(lock), "--require-hashes", *arguments)
    except NotAskedError as error:
        print(
            f"audit: nothing was looked at: the service of known vulnerabilities gives no answer ({error}). Run make "
            "audit where https://pypi.org answers itself, not a mirror of it",
            file=sys.stderr,
        )
        return 2
    found = [(each, vulnerability) for each in packages for vulnerability in each["vulns"]]
    for package, vulnerability in found:
        mended = ", ".join(vulnerability["fix_versions"]) or "no version yet"
        print(f"{package['name']} {package['version']}: {vulnerability['id']}, mended in {mended}")
    print(f"audit: {len(packages)} packages, {len(found)} known vulnerabilities")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
