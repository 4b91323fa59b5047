"""Releases of the libraries on the driver and on an executor: a difference that breaks a batch, and one to know of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Driver and worker speak a protocol of this release's own. Of the numbers of its release, those that have to be equal.
PYSPARK: Final = "pyspark"
_PYSPARK_PARTS: Final = 2
#: They encode rows and records, by the names under which they are installed.
ENCODERS: Final = ("pyarrow", "numpy", "pgpq", "kafka-python", "lz4", "google-crc32c", "xxhash")
LIBRARIES: Final = (PYSPARK, *ENCODERS)


def breaks_tasks(driver: Mapping[str, str], executor: Mapping[str, str]) -> str:
    """Why no task can run there; '' where nothing is known against it.

    Args:
        driver: release by library; one that is not known is not compared.
        executor: the same.
    """
    ours, theirs = driver.get(PYSPARK, ""), executor.get(PYSPARK, "")
    if not (ours and theirs) or _first(ours, _PYSPARK_PARTS) == _first(theirs, _PYSPARK_PARTS):
        return ""
    return f"has {PYSPARK} {theirs}, and the driver {ours}"


def other_encoders(driver: Mapping[str, str], executor: Mapping[str, str]) -> str:
    """The encoding libraries of another major release, with both releases; '' where there are none.

    A batch may still be written: no library promises that it may not.

    Args:
        driver: release by library; one that is not known is not compared.
        executor: the same.
    """
    both = [(name, driver.get(name, ""), executor.get(name, "")) for name in ENCODERS]
    return ", ".join(
        f"{name} {theirs} for {ours}"
        for name, ours, theirs in both
        if ours and theirs and _major(ours) != _major(theirs)
    )


def _major(release: str) -> str:
    """A release 0.12.1 promises no more to one of 0.13 than 1.2 to one of 2.0."""
    return _first(release, 2 if release.startswith("0.") else 1)


def _first(release: str, parts: int) -> str:
    return ".".join(release.split(".")[:parts])
