"""What a task is given to log in to the database: the way to the password, and not the password that was found."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle

from spark_2pc_sink.options import SinkOptions
from spark_2pc_sink.sink.transfer.staging_tables import StagingSession

PASSWORD = "planted-password"
_FILE = Path("/nowhere")


def options(database: str, **more: Any) -> SinkOptions:
    kafka = {"bootstrap.servers": "h:1"}
    return SinkOptions.parse(transactional_id="t", kafka=kafka, database=database, topic="t", table="t", **more)


def sent(given: SinkOptions) -> bytes:
    """As Spark pickles it, after the driver has asked for the password itself."""
    if given.password_source is not None:
        assert given.password_source() == PASSWORD
    pickled: bytes = cloudpickle.dumps(StagingSession.of(given, "t"))  # type: ignore[no-untyped-call]
    return pickled


def from_file() -> str:
    return _FILE.read_text()


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(f"{__name__}._FILE", tmp_path / "password")
    _FILE.write_text(PASSWORD)
    return _FILE


def test_a_password_that_was_found_stays(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a function, a command, a service file and the environment."""
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    ways: list[dict[str, Any]] = [
        {"database": "postgresql://u@h/d", "database_password": from_file},
        {"database": "postgresql://u@h/d", "database_password": file.read_text},
        {"database": "postgresql://u@h/d", "password_command": f"cat {file}"},
        {"database": "postgresql:///?service=orders"},
        {"database": "postgresql://u@h/d"},
    ]
    for way in ways:
        pickled = sent(options(**way))
        assert PASSWORD.encode() not in pickled
        asked = pickle.loads(pickled).password  # noqa: S301 - our own bytes
        assert asked is None or asked() == PASSWORD


def test_a_password_in_the_url_goes_with_it() -> None:
    """docs/logins.md says so: the URL is all that a task has."""
    assert PASSWORD.encode() in sent(options(f"postgresql://u:{PASSWORD}@h/d"))
