"""ACLs for tests, each given by one rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from spark_2pc_sink.reference.coordinator.events import AclOperation, Resource


@dataclass(frozen=True)
class AccessBy:
    """What the rule allows; for any resource of a kind it is asked with the name '*'."""

    rule: Callable[[AclOperation, Resource, str], bool]

    def allows(self, operation: AclOperation, resource: Resource, name: str) -> bool:
        return self.rule(operation, resource, name)

    def allows_any(self, operation: AclOperation, resource: Resource) -> bool:
        return self.rule(operation, resource, "*")


def denying(*operations: AclOperation, resource: Resource | None = None, name: str | None = None) -> AccessBy:
    """Everything is allowed but some operations, on every resource or on those of one kind or name."""
    return AccessBy(
        lambda operation, kind, named: (
            not (operation in operations and resource in {None, kind} and name in {None, named})
        )
    )


def on_kinds(*kinds: Resource) -> AccessBy:
    """Everything is allowed on resources of these kinds alone."""
    return AccessBy(lambda _operation, kind, _name: kind in kinds)
