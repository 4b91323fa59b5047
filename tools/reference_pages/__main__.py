"""Write all pages of docs/reference that are made of the code, what is made of other pages, and pictures."""

from __future__ import annotations

from pathlib import Path

from tools.reference_pages.pages import PAGES, PARTS, PICTURES

ROOT = Path(__file__).parents[2]

if __name__ == "__main__":
    for name, made in PAGES.items():
        (ROOT / "docs" / "reference" / name).write_text(made())
    for name, with_part in PARTS.items():
        page = ROOT / name
        page.write_text(with_part(page.read_text()))
    for name, drawn in PICTURES.items():
        (ROOT / name).write_text(drawn())
