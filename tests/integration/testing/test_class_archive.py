"""The archive that halves a broker's start."""

from __future__ import annotations

from spark_2pc_sink.testing.class_archive import make_class_archive


def test_it_is_made_once(brokers: object) -> None:
    """``make setup`` makes it; a second call finds it."""
    archive = make_class_archive()
    made = archive.stat().st_mtime_ns
    assert make_class_archive() == archive
    assert archive.stat().st_mtime_ns == made
