"""The request: everything that a caller of `verify` has said, checked and parsed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from spark_2pc_sink.options import CommonOptions
from spark_2pc_sink.verification.reading import Progress
from spark_2pc_sink.verification.scope import Scope
from spark_2pc_sink.verification.target import GivenTarget


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
    shape: Mapping[str, str | Sequence[str] | None] = field(default_factory=dict)
