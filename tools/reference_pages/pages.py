"""What is made of the code: pages, by their names in docs/reference, parts of other pages, and pictures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from tools.reference_pages.choices import with_causes, with_sections
from tools.reference_pages.column_types import column_types_page
from tools.reference_pages.command_line import command_line_page
from tools.reference_pages.errors import errors_page
from tools.reference_pages.json_output import json_page
from tools.reference_pages.metrics import metrics_page
from tools.reference_pages.options import SIGNATURES, options_page
from tools.reference_pages.recipe_picture import recipe_picture
from tools.reference_pages.state_tables import state_tables_page, with_picture

PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "options.md": options_page,
    "column-types.md": column_types_page,
    "commands.md": command_line_page,
    "errors.md": errors_page,
    "json.md": json_page,
    "metrics.md": metrics_page,
    "state-tables.md": state_tables_page,
}

#: Pages and sources written by hand, of which a part is made: from the root.
PARTS: Final[Mapping[str, Callable[[str], str]]] = {
    "RUNBOOK.md": with_sections,
    "docs/after-a-crash.md": with_causes,
    "docs/how-it-works.md": with_picture,
    **SIGNATURES,
}

#: From the root.
PICTURES: Final[Mapping[str, Callable[[], str]]] = {"docs/images/recipe.svg": recipe_picture}
