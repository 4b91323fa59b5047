"""Up to where each log was on disk when the node last started or stopped: what a later start must find.

A log only grows, so the offsets of any earlier moment hold. A partition is named by its topic's id, because a topic
that is created anew under the same name begins at 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias
from uuid import UUID

from spark_2pc_sink.reference.metadata.catalog_state import id_of_text, id_text
from spark_2pc_sink.reference.metadata.checked_json import read_checked, write_checked

#: Topic id and partition to the offset behind the last record.
LogEnds: TypeAlias = Mapping[tuple[UUID, int], int]


def write_log_ends(ends: LogEnds) -> bytes:
    """The ends as JSON."""
    rows = [[id_text(topic_id), partition, end] for (topic_id, partition), end in ends.items()]
    return write_checked({"ends": rows})


def read_log_ends(data: bytes) -> LogEnds:
    """The ends that `write_log_ends` wrote.

    Raises:
        ValueError: the bytes are something else, or their checksum does not fit.
    """
    try:
        rows = read_checked(data)["ends"]
        return {(id_of_text(topic_id), int(partition)): int(end) for topic_id, partition, end in rows}
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"a field is missing or has the wrong type: {error!r}") from error
