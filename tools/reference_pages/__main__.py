"""Write all pages of docs/reference that are made of the code."""

from __future__ import annotations

from pathlib import Path

from tools.reference_pages.pages import PAGES

if __name__ == "__main__":
    for name, page in PAGES.items():
        (Path(__file__).parents[2] / "docs" / "reference" / name).write_text(page())
