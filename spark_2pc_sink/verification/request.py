"""The request: everything that a caller of `verify` has said, checked and parsed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from spark_2pc_sink.options import CommonOptions
from spark_2pc_sink.options.names import check_topic
from spark_2pc_sink.options.schema_registry import SchemaRegistryOptions
from spark_2pc_sink.options.settings import options_of
from spark_2pc_sink.verification.missing_files import checked_directory
from spark_2pc_sink.verification.record_columns import parse_record_columns
from spark_2pc_sink.verification.scope import Scope
from spark_2pc_sink.verification.target import GivenTarget

#: Told what is being done, how much of it is done, and how much there is.
Progress = Callable[[str, int, int], None]

#: Keywords of `verify` that tell the form of the table.
_SHAPE: Final = ("table", "topic", "mode", "keys", "order_by", "late_rows", "record_columns")
#: Of these, those that are about one table of several.
OF_ONE_TABLE: Final = _SHAPE[1:]


@dataclass(frozen=True, kw_only=True)
class Request:
    """One verification.

    Attributes:
        options: names, connections and time-outs.
        target: table, mode and key, as far as they were given.
        scope: the batches.
        progress: told how far it is.
        differences_max: of each kind so many are named.
        wait_ms: how long a decided batch may take to become visible.
        table_only: topics are compared with the table, and not with the history.
        write_missing: where files with what is lacking go; None for none.
        registry: where schemas of values are; None where none is named.
        topic: the one that has the records of the table; None to find it.
        shape: the keywords of the target as they were given, for commands that repeat them.
    """

    options: CommonOptions
    target: GivenTarget
    scope: Scope
    progress: Progress
    differences_max: int
    wait_ms: int
    table_only: bool = False
    write_missing: Path | None = None
    registry: SchemaRegistryOptions | None = None
    topic: str | None = None
    shape: Mapping[str, str | Sequence[str] | None] = field(default_factory=dict)

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> Request:
        """Check the keywords of `verify`.

        Raises:
            ConfigurationError: one is wrong, or contradicts another.
        """
        common = {item.name for item in options_of(CommonOptions)}
        shape = {name: given[name] for name in _SHAPE}
        keys, directory = given["keys"], given["write_missing"]
        target = {
            **{name: shape[name] for name in shape if name != "topic"},
            "keys": None if keys is None else tuple(keys),
        }
        target["record_columns"] = parse_record_columns(given["record_columns"])
        return cls(
            options=CommonOptions.parse(**{name: value for name, value in given.items() if name in common}),
            target=GivenTarget(**target),
            scope=Scope(**{name: given[name] for name in ("since", "last", "batch")}),
            progress=given["progress"] or _unseen,
            differences_max=given["differences_max"],
            wait_ms=given["wait_ms"],
            table_only=given["table_only"],
            write_missing=None if directory is None else checked_directory(Path(directory)),
            registry=SchemaRegistryOptions.parse(given["schema_registry"]),
            topic=check_topic(given["topic"]),
            shape=shape,
        )


def _unseen(what: str, done: int, total: int) -> None:
    """The progress that nobody asked for."""
    del what, done, total
