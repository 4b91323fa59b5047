"""Finding Java."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_2pc_sink.testing.java import find_java_home, java_version


@pytest.fixture(autouse=True)
def forget_what_was_found() -> Iterator[None]:
    find_java_home.cache_clear()
    yield
    find_java_home.cache_clear()


def fake_java(home: Path, version: str) -> Path:
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n")
    java.chmod(0o755)
    return home


@pytest.mark.parametrize(("text", "major"), [("17.0.15", 17), ("25", 25), ("1.8.0_402", 1)])
def test_reads_the_major_version(tmp_path: Path, text: str, major: int) -> None:
    assert java_version(fake_java(tmp_path, text)) == major


def test_java_home_is_asked_first_and_an_old_one_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", "11.0.2")))
    monkeypatch.setenv("PATH", str(fake_java(tmp_path / "new", "21.0.1") / "bin"))
    assert find_java_home() == tmp_path / "new"
