"""Finding a Java runtime."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from spark_2pc_sink.testing.processes import CapabilityError

#: Spark 4 and the Kafka 4 broker both ask for 17.
JAVA_VERSION_MIN = 17
_VERSION_DEADLINE_S = 30


@cache
def find_java_home() -> Path:
    """The home of a Java runtime, 17 or later: ``$JAVA_HOME``, else PATH's, else the oldest in /usr/lib/jvm.

    The oldest that suffices, because it is the one that most Spark releases support. Raises CapabilityError if there is
    none.
    """
    for home in _candidates():
        version = java_version(home)
        if version is not None and version >= JAVA_VERSION_MIN:
            return home
    raise CapabilityError(
        f"no Java {JAVA_VERSION_MIN} or later in JAVA_HOME, on PATH or in /usr/lib/jvm: "
        f"install one (Debian: apt-get install openjdk-{JAVA_VERSION_MIN}-jre-headless)"
    )


@cache
def java_version(home: Path) -> int | None:
    """The major version of the runtime in ``home``; None if it does not run."""
    java = home / "bin" / "java"
    if not os.access(java, os.X_OK):
        return None
    answer = subprocess.run(
        [java, "-version"], capture_output=True, text=True, timeout=_VERSION_DEADLINE_S, check=False
    )
    found = re.search(r'version "(\d+)', answer.stderr)
    return int(found.group(1)) if found else None


def archive_options(archive: Path) -> list[str]:
    """Options of a virtual machine that maps an archive of classes (JEP 350); empty without one.

    A mismatching archive (another Java, other jars) is ignored by the virtual machine, not an error.
    """
    return [f"-XX:SharedArchiveFile={archive}", "-Xshare:auto", "-Xlog:disable"] if archive.exists() else []


def _candidates() -> Iterator[Path]:
    if os.environ.get("JAVA_HOME"):
        yield Path(os.environ["JAVA_HOME"])
    on_path = shutil.which("java")
    if on_path is not None:
        yield Path(on_path).resolve().parent.parent
    installed = Path("/usr/lib/jvm")
    if installed.is_dir():
        homes = [home for home in installed.iterdir() if (home / "bin" / "java").exists()]
        yield from sorted(homes, key=lambda home: java_version(home) or 0)
