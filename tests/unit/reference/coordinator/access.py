"""ACLs for tests: everything is allowed but what is listed."""

from __future__ import annotations

from dataclasses import dataclass

from spark_2pc_sink.reference.coordinator.events import Operation, Resource


@dataclass(frozen=True)
class Denied:
    """Everything is allowed but these (operation, resource, name); a name of '*' denies the operation for all."""

    rules: frozenset[tuple[Operation, Resource, str]]

    def allows(self, operation: Operation, resource: Resource, name: str) -> bool:
        return not {(operation, resource, name), (operation, resource, "*")} & self.rules

    def allows_any(self, operation: Operation, resource: Resource) -> bool:
        return (operation, resource, "*") not in self.rules


def denied(*rules: tuple[Operation, Resource, str]) -> Denied:
    """Access without these."""
    return Denied(frozenset(rules))
