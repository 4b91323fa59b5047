"""Settings of a Spark session that other tests share."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession


@contextmanager
def session_settings(spark: SparkSession, settings: Mapping[str, str | None]) -> Iterator[None]:
    """Change settings (None: as if nobody had set it), and put back the values that were there."""
    before = {name: spark.conf.get(name) for name in settings}
    try:
        for name, value in settings.items():
            if value is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, value)
        yield
    finally:
        for name, old in before.items():
            spark.conf.set(name, str(old))
