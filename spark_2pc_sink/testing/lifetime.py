"""Resources that start with a ``with`` statement and are removed at its end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self


class Lifetime(ABC):
    """A server, or several: entering starts it; leaving, or a failed start, closes it."""

    @abstractmethod
    def start(self) -> None:
        """Start it, and wait until it can be used."""

    @abstractmethod
    def close(self) -> None:
        """End it and remove its data; also if it never started."""

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
