"""Which names topics may have (Kafka: ``org.apache.kafka.common.internals.Topic``)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

#: The topic of a KRaft cluster's own log, which no client may create.
CLUSTER_METADATA: Final = "__cluster_metadata"
#: Directories are called after topics, with a partition number behind: 255 bytes are what file systems take.
NAME_LENGTH_MAX: Final = 249
_LEGAL: Final = re.compile(r"[a-zA-Z0-9._-]+")


def name_fault(name: str) -> str | None:
    """What is wrong with a name, in Kafka's words; None when nothing is."""
    if not name:
        fault = "the empty string is not allowed"
    elif name in {".", ".."}:
        fault = f"'{name}' is not allowed"
    elif len(name) > NAME_LENGTH_MAX:
        fault = f"the length of '{name}' is longer than the max allowed length {NAME_LENGTH_MAX}"
    elif _LEGAL.fullmatch(name) is None:
        fault = f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    else:
        return None
    return f"Topic name is invalid: {fault}"


def colliding(name: str, existing: Iterable[str]) -> str | None:
    """A topic whose metrics could not be told from those of the new one: '.' and '_' are one there."""
    if not {".", "_"} & set(name):
        return None
    unified = name.replace(".", "_")
    return next((other for other in existing if other != name and other.replace(".", "_") == unified), None)
