"""The packages that a Python needs beside Spark and this one, as docs/connect.md has an author install them."""

from __future__ import annotations

import re
import shlex

from tests.harness import ROOT


def packages_beside_spark() -> list[str]:
    """The arguments of the page's `pip install`, without Spark's client."""
    page = (ROOT / "docs" / "connect.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^pip install pyspark-client ((?:.*\\\n)*.*)", page, flags=re.MULTILINE)
    return shlex.split(command.replace("\\\n", " "))
