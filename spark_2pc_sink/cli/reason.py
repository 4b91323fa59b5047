"""The reason for a person's decision: ``--reason``, or requested on the terminal, before data may differ."""

from __future__ import annotations

import argparse
import sys
from typing import Final

from spark_2pc_sink.errors import ConfigurationError

_RULE: Final = "it says why, in the record of what people did (spark-2pc history), and no terminal is there to ask on"


def reason_for(given: argparse.Namespace, decided: str) -> str:
    """The given reason, or one that the person types now.

    Args:
        given: the command line.
        decided: the decision, as a flag or a command.

    Raises:
        ConfigurationError: none was given, and there is no terminal, or the answer is empty.
    """
    reason: str | None = getattr(given, "reason", None)
    if reason is not None:
        return reason
    remedy = f"pass --reason 'why' with {decided}"
    if not sys.stdin.isatty():
        raise ConfigurationError(option="--reason", value=None, rule=_RULE, remedy=remedy)
    # Not on standard output, which may be read by a program.
    sys.stderr.write(f"Why {decided}? (It is written down for others, see spark-2pc history): ")
    sys.stderr.flush()
    typed = sys.stdin.readline().strip()
    if not typed:
        raise ConfigurationError(option="--reason", value=typed, rule="it is not empty", remedy=remedy)
    return typed
