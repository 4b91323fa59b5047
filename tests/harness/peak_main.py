"""A command of ``spark-2pc`` in a process of its own, which says what memory it took.

Arguments: the command's. Prints what the command prints, and on standard error last its peak in MiB.
"""

from __future__ import annotations

import sys

from spark_2pc_sink import cli
from tests.harness.bombs import peak_mib


def main(words: list[str]) -> int:
    """Run the command, and return its exit code."""
    code = cli.main(words)
    print(peak_mib(), file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
