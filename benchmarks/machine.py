"""What the benchmarks run on: the machine, and the versions of everything that takes part."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from spark_2pc_sink.testing.kafka_broker import find_libs
from spark_2pc_sink.testing.postgres import find_binaries
from spark_2pc_sink.testing.processes import find_java_home, java_version

_PACKAGES = ("pyspark", "pyarrow", "numpy", "pgpq", "psycopg2-binary", "confluent-kafka", "kafka-python")
_PROGRAM_DEADLINE_S = 30.0


def facts(directory: Path) -> dict[str, Any]:
    """Everything that a reader needs to judge a figure.

    Args:
        directory: where the servers keep their data; its disk is named.
    """
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "disk": _disk(directory),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "load_before": round(os.getloadavg()[0], 2),
        "versions": {
            "python": platform.python_version(),
            "java": java_version(find_java_home()),
            "kafka": _kafka_version(),
            "postgresql": _postgres_version(),
            **{name: version(name) for name in _PACKAGES},
            "commit": _commit(),
        },
    }


def _cpu_model() -> str:
    text = Path("/proc/cpuinfo").read_text()
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    clock = re.search(r"^cpu MHz\s*:\s*([\d.]+)$", text, re.MULTILINE)
    model = found.group(1) if found else platform.processor()
    return model if clock is None else f"{model}, {float(clock.group(1)) / 1000:.1f} GHz"


def _disk(directory: Path) -> str:
    """File system and kind of the disk below a directory."""
    mounts = [part for part in psutil.disk_partitions(all=True) if directory.is_relative_to(part.mountpoint)]
    if not mounts:
        return "unknown"
    mount = max(mounts, key=lambda part: len(part.mountpoint))
    # vda1 is a part of vda, nvme0n1p2 of nvme0n1; what is neither has no folder of its own and tells nothing.
    name = re.sub(r"(?<=\dp)\d+$|(?<=[a-z])\d+$", "", Path(mount.device).name).removesuffix("p")
    rotational = Path(f"/sys/block/{name}/queue/rotational")
    kind = "kind not told"
    if rotational.exists():
        kind = "reported as rotating" if rotational.read_text().strip() == "1" else "reported as not rotating"
    return f"{mount.fstype} on {name} ({kind})"


def _kafka_version() -> str:
    jar = next(find_libs().glob("kafka_2.13-*.jar"))
    return jar.stem.removeprefix("kafka_2.13-")


def _postgres_version() -> str:
    return _output([str(find_binaries() / "postgres"), "--version"]).split()[-1]


def _commit() -> str:
    """The commit of the source, marked when it was changed; empty outside of a repository."""
    return _output(["git", "describe", "--always", "--dirty"], folder=Path(__file__).parent)


def _output(command: list[str], folder: Path | None = None) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_PROGRAM_DEADLINE_S, check=False, cwd=folder)
    return done.stdout.strip()
