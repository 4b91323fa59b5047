"""The inputs that are checked in: what each target is known to have been given."""

from __future__ import annotations

from pathlib import Path
from typing import Final

CORPUS: Final = Path(__file__).parent / "corpus"
#: The targets; each has a folder.
NAMES: Final = tuple(sorted(folder.name for folder in CORPUS.iterdir()))


def inputs() -> list[tuple[str, Path]]:
    """Each input with its target."""
    return [(name, path) for name in NAMES for path in sorted((CORPUS / name).iterdir())]
