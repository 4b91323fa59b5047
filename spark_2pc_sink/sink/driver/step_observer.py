"""Told of every step that a batch reaches, on the driver.

This is where tests stop a driver between two steps, by replacing `reached`. It is no part of the public API and does
no more than log.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spark_2pc_sink.recipe.steps import Step

_log = logging.getLogger(__name__)


def reached(step: Step) -> None:
    """A step is complete."""
    _log.debug("step %d reached: %s", step, step.name)
