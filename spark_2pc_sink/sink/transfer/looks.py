"""How often staged rows are looked for while tasks still run."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

#: The pause behind a look that has found nothing is so many times as long as the look, up to a limit: the table of each
#: task is asked in it, and of hundreds of tasks the server would do nothing else.
_SHARE: Final = 4
_PAUSE_MAX_S: Final = 0.2


class LookPace:
    """The pause before the next look, by what the last one has found and how long it took.

    Args:
        look_s: the shortest pause.
        idle_s: the longest: the server has to be asked something by then, and a look does.

    Attributes:
        pause_s: seconds until the next look.
    """

    def __init__(self, look_s: float, idle_s: float = math.inf) -> None:
        self._look_s = min(look_s, idle_s)
        self._idle_s = idle_s
        self.pause_s: float = self._look_s

    def look(self, look: Callable[[], bool]) -> None:
        """Look, and set the pause behind it.

        Args:
            look: True when there was something.
        """
        begun_s = time.monotonic()
        found = look()
        took_s = time.monotonic() - begun_s
        longer_s = 0.0 if found else min(_SHARE * took_s, _PAUSE_MAX_S)
        self.pause_s = min(self._idle_s, max(self._look_s, longer_s))
