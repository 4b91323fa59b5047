"""Pythons beside the one that runs the tests: of a Spark Connect client, and of executors. `make other-pythons`.

python -m tests.harness.other_pythons    prints the packages that they need beside Spark, for a shell
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Final

from spark_2pc_sink.testing.processes import CapabilityError
from tests.harness import ROOT

if TYPE_CHECKING:
    from pathlib import Path

CLIENT: Final = "client-python"
EXECUTOR: Final = "executor-python"


def other_python(name: str) -> Path:
    """The folder of an environment.

    Args:
        name: `CLIENT`: as docs/connect.md says, with `pyspark-client`, and no `pyspark`. `EXECUTOR`: with neither.
    """
    folder = ROOT / ".cache" / name
    if not (folder / "stamp").exists():
        message = f"no environment in {folder}: make other-pythons"
        raise CapabilityError(message)
    return folder


def packages_beside_spark() -> list[str]:
    """The arguments of the `pip install` of docs/connect.md, without Spark's client."""
    page = (ROOT / "docs" / "connect.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^pip install pyspark-client ((?:.*\\\n)*.*)", page, flags=re.MULTILINE)
    return shlex.split(command.replace("\\\n", " "))


if __name__ == "__main__":
    print(shlex.join(packages_beside_spark()))
