"""What a target sets up: what it needs, and no more."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
#: What takes a minute to fetch or to make, as its command names it.
SERVERS = {
    "Kafka": "docker/kafka/pom.xml",
    "Spark's connectors": "docker/spark/pom.xml",
    "Kafka's tools": "docker/kafka-tools/pom.xml",
    "class archives": "class_archive",
    "programs of some tests": "chromium",
}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["demo"], set()),
        (["demo", "KAFKA=real"], {"Kafka"}),
        (["test-fast"], set()),
        (["setup"], set(SERVERS)),
    ],
    ids=lambda given: "-".join(sorted(given)) or "none",
)
def test_a_target_fetches_the_servers_that_it_needs(words: list[str], expected: set[str]) -> None:
    told = ["make", "--dry-run", "--always-make", "--no-print-directory", *words]
    done = subprocess.run(told, cwd=ROOT, capture_output=True, text=True, check=True)
    assert {name for name, command in SERVERS.items() if command in done.stdout} == expected
    assert ("the other Python packages" in done.stdout) == (words[0] != "demo")
    packages = done.stdout.replace("\\\n", " ").splitlines()
    assert all("--require-hashes" in line or "--constraint" in line for line in packages if "pip install" in line)
    assert "tools/prerequisites.sh python java" in done.stdout
