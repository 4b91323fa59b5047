"""Names in cases to numbers of a server, and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from tests.conformance.cases import NEW_NAMES, Name
from tests.conformance.operations import CoordinatorEpoch, Operation, Partition, ProducerId

T = TypeVar("T")

#: A producer id that no server gives out.
UNKNOWN_PRODUCER_ID: Final = 7_777_777_777


def walk(value: Any, leaf: Callable[[Any], Any]) -> Any:
    """The value with every part for which ``leaf`` has something else replaced by that; None is nothing else."""
    other = leaf(value)
    if other is not None:
        return other
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {each.name: walk(getattr(value, each.name), leaf) for each in dataclasses.fields(value)}
        return dataclasses.replace(value, **fields)
    if isinstance(value, tuple):
        return tuple(walk(each, leaf) for each in value)
    if isinstance(value, list):
        return [walk(each, leaf) for each in value]
    if isinstance(value, Mapping):
        return {walk(key, leaf): walk(each, leaf) for key, each in value.items()}
    return value


@dataclass
class Names:
    """What the names of one case stand for on one server.

    Args:
        mark: put in place of the sign in transactional ids and groups; unique on the server.
        topics: for ``@here`` and its like: the topic, and the index of the first partition.
        now_ms: timestamp of what is produced.
        coordinator_epoch: which answers name ``OWN``.
    """

    mark: str
    topics: Mapping[str, Partition]
    producer_ids: dict[str, int]
    now_ms: int = 0
    coordinator_epoch: int = 0
    _new: list[str] = field(default_factory=lambda: list(NEW_NAMES))

    def fill(self, operation: Operation) -> Any:
        """The operation with everything that it names filled in."""
        filled = walk(operation, self._fill)
        late = getattr(filled, "now_ms", None)
        # A negative time is an age.
        return filled if late is None else dataclasses.replace(filled, now_ms=self.now_ms + late)

    def partition(self, partition: Partition) -> Partition:
        """A partition of a case on the server."""
        filled: Partition = walk(partition, self._fill)
        return filled

    def name(self, result: T) -> T:
        """An answer with names in place of what this server chose; ids seen for the first time get the next name."""
        named: T = walk(result, self._name)
        return named

    def _fill(self, value: Any) -> Any:
        if isinstance(value, Name):
            return self.producer_ids.get(value.name, UNKNOWN_PRODUCER_ID)
        if _is_partition(value) and value[0] in self.topics:
            topic, first = self.topics[value[0]]
            return topic, first + value[1]
        if isinstance(value, str) and value.startswith("@"):
            return self.mark + value[1:]
        return None

    def _name(self, value: Any) -> Any:
        if isinstance(value, ProducerId):
            return self._producer(int(value)) if value >= 0 else int(value)
        if isinstance(value, CoordinatorEpoch):
            return "OWN" if value == self.coordinator_epoch else int(value)
        if _is_partition(value):
            for sign, (topic, first) in self.topics.items():
                if topic == value[0] and value[1] >= first:
                    return f"{sign[1:]}{value[1] - first}"
        if isinstance(value, str) and value.startswith(self.mark):
            return "@" + value.removeprefix(self.mark)
        return None

    def _producer(self, number: int) -> str:
        for name, known in self.producer_ids.items():
            if known == number:
                return name
        self.producer_ids[self._new[0]] = number
        return self._new.pop(0)


def _is_partition(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str) and isinstance(value[1], int)
