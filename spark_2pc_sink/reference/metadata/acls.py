"""ACLs, and what they allow: the rules of Kafka's ``StandardAuthorizer`` (KIP-801).

A rule names a resource, by its name or by a prefix of names, a principal, a host and an operation. ``super.users`` may
do everything. Otherwise a matching DENY decides, then a matching ALLOW; if rules name the resource but none matches,
access is denied; if no rule names it, ``allow.everyone.if.no.acl.found`` decides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from spark_2pc_sink.reference.config.properties import BrokerProperties
from spark_2pc_sink.reference.coordinator.events import FULL_ACCESS, Access, AclOperation, Resource

#: Every name, every host.
WILDCARD: Final = "*"
WILDCARD_PRINCIPAL: Final = "User:*"
#: ``AclOperation.ALL``: a rule for every operation.
ALL_OPERATIONS: Final = 2
#: What an ALLOW also allows (never what a DENY also denies): ``StandardAuthorizerData.IMPLIES_DESCRIBE`` and its twin.
_IMPLIED_BY: Final[Mapping[int, frozenset[int]]] = {
    AclOperation.DESCRIBE.value: frozenset({3, 4, 6, 7, 8}),  # READ, WRITE, DELETE, ALTER, DESCRIBE
    AclOperation.DESCRIBE_CONFIGS.value: frozenset({10, 11}),  # DESCRIBE_CONFIGS, ALTER_CONFIGS
}
#: A name that no rule has: access to it implies access to any (``Authorizer.authorizeByResourceType``).
_ANY_NAME: Final = "hardcode"


class PatternCode(IntEnum):
    """``PatternType`` codes allowed in a rule (KIP-290)."""

    LITERAL = 3
    PREFIXED = 4


class PermissionCode(IntEnum):
    """``AclPermissionType`` codes allowed in a rule."""

    DENY = 2
    ALLOW = 3


@dataclass(frozen=True, order=True, kw_only=True)
class Acl:
    """One rule, with the wire protocol's codes.

    ``*`` as the name of a literal pattern matches every name, as a host every host; ``User:*`` matches every user.
    """

    resource: int
    pattern: int
    name: str
    principal: str
    host: str
    operation: int
    permission: int

    @property
    def allows(self) -> bool:
        return self.permission == PermissionCode.ALLOW

    def names(self, resource: int, name: str) -> bool:
        if self.resource != resource:
            return False
        if self.pattern == PatternCode.PREFIXED:
            return name.startswith(self.name)
        return self.name in {name, WILDCARD}

    def applies_to(self, principal: str, host: str, operation: int) -> bool:
        if self.principal not in {principal, WILDCARD_PRINCIPAL} or self.host not in {host, WILDCARD}:
            return False
        if self.operation in {operation, ALL_OPERATIONS}:
            return True
        return self.allows and self.operation in _IMPLIED_BY.get(operation, ())


@dataclass(frozen=True, kw_only=True)
class AclAccess:
    """What one client may do; ``acls`` gives the rules in effect, at every check."""

    acls: Callable[[], tuple[Acl, ...]]
    principal: str
    host: str
    is_super_user: bool
    open_without_acl: bool

    def allows(self, operation: AclOperation, resource: Resource, name: str) -> bool:
        if self.is_super_user:
            return True
        named = [acl for acl in self.acls() if acl.names(resource.value, name)]
        if not named:
            return self.open_without_acl
        matching = [acl for acl in named if acl.applies_to(self.principal, self.host, operation.value)]
        return bool(matching) and all(acl.allows for acl in matching)

    def allows_any(self, operation: AclOperation, resource: Resource) -> bool:
        """As ``Authorizer.authorizeByResourceType``: an ALLOW for any resource counts unless a DENY covers it whole."""
        if self.allows(operation, resource, _ANY_NAME):
            return True
        exact = {operation.value, ALL_OPERATIONS}
        of_kind = (acl for acl in self.acls() if acl.resource == resource.value and acl.operation in exact)
        matching = [acl for acl in of_kind if acl.applies_to(self.principal, self.host, operation.value)]
        denied = [acl for acl in matching if not acl.allows]
        return any(acl.allows and not any(_covers(deny, acl) for deny in denied) for acl in matching)


def _covers(deny: Acl, allow: Acl) -> bool:
    literal = allow.pattern == PatternCode.LITERAL
    if deny.pattern == PatternCode.PREFIXED:
        return allow.name.startswith(deny.name) and not (literal and allow.name == WILDCARD)
    return deny.name == WILDCARD or (literal and allow.name == deny.name)


def access_by_acls(properties: BrokerProperties, acls: Callable[[], tuple[Acl, ...]]) -> Callable[[str, str], Access]:
    if properties.authorizer_class_name is None:
        return lambda _principal, _host: FULL_ACCESS
    super_users = properties.super_user_principals
    return lambda principal, host: AclAccess(
        acls=acls,
        principal=principal,
        host=host,
        is_super_user=principal in super_users,
        open_without_acl=properties.allow_everyone_if_no_acl_found,
    )
