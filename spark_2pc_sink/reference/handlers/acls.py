"""CreateAcls, DescribeAcls, DeleteAcls: v1 to v3, with the answers of Kafka's AclApis and AclControlManager."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain, groupby
from typing import Any, Final, TypeVar

from kafka.protocol.admin import CreateAclsResponse, DeleteAclsResponse, DescribeAclsResponse

from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import RemoteProtocolError
from spark_2pc_sink.reference.coordinator.events import CLUSTER_NAME, AclOperation, Resource
from spark_2pc_sink.reference.metadata.acls import ALL_OPERATIONS, Acl, PatternCode, PermissionCode
from spark_2pc_sink.reference.metadata.catalog import Catalog
from spark_2pc_sink.reference.protocol import RequestContext, serves
from spark_2pc_sink.wire.api_versions import Api

_Described: Final = DescribeAclsResponse.DescribeAclsResource
_Created: Final = CreateAclsResponse.AclCreationResult
_Deleted: Final = DeleteAclsResponse.DeleteAclsFilterResult
#: ``AclOperation`` codes allowed in a rule: ALL, and everything up to TWO_PHASE_COMMIT.
OPERATION_CODES: Final = range(ALL_OPERATIONS, 16)
_ONE_CLUSTER: Final = f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
_NO_COLON: Final = "(no colon is present separating the principal type from the principal name)"


@dataclass(frozen=True, kw_only=True)
class AclFilter:
    """Which rules to show or to delete; None and the codes 1 match all (``AclBindingFilter``).

    The pattern MATCH also finds the wildcard and the prefixes that cover ``name``.
    """

    resource: int
    pattern: int
    name: str | None
    principal: str | None
    host: str | None
    operation: int
    permission: int

    #: ``ANY`` of each of Kafka's enumerations, and ``PatternType.MATCH``.
    ANY = 1
    MATCH = 2

    def matches(self, acl: Acl) -> bool:
        covered = self.name is not None and self.pattern == self.MATCH and acl.names(acl.resource, self.name)
        return (
            self.resource in {self.ANY, acl.resource}
            and self.pattern in {self.ANY, self.MATCH, acl.pattern}
            and (covered or self.name in {None, acl.name})
            and self.principal in {None, acl.principal}
            and self.host in {None, acl.host}
            and self.operation in {self.ANY, acl.operation}
            and self.permission in {self.ANY, acl.permission}
        )


class AclHandlers:
    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    @serves(Api.DESCRIBE_ACLS, 1, 3)
    async def describe_acls(self, context: RequestContext, request: Any) -> Any:
        """The rules that match a filter, by resource; requires DESCRIBE on the cluster."""
        wanted = _read(AclFilter, request, _FILTER)
        if refusal := self._refusal(context, AclOperation.DESCRIBE):
            return DescribeAclsResponse(**refusal)
        matching = sorted(filter(wanted.matches, self._catalog.state.acls))
        found = groupby(matching, key=lambda acl: (acl.resource, acl.pattern, acl.name))
        resources = [
            _Described(
                resource_type=resource,
                resource_name=name,
                pattern_type=pattern,
                acls=[_Described.AclDescription(**_fields(acl, _DESCRIBED)) for acl in acls],
            )
            for (resource, pattern, name), acls in found
        ]
        return DescribeAclsResponse(resources=resources)

    @serves(Api.CREATE_ACLS, 1, 3)
    async def create_acls(self, context: RequestContext, request: Any) -> Any:
        acls = [_read(Acl, creation, _CREATION) for creation in request.creations]
        if refusal := self._refusal(context, AclOperation.ALTER):
            return CreateAclsResponse(results=[_Created(**refusal) for _ in acls])
        refusals = [refusal_of(acl) for acl in acls]
        sound = {acl for acl, fault in zip(acls, refusals, strict=True) if fault is None}
        await self._catalog.alter_acls(lambda now: now | sound)
        outcomes = [fault or (Code.NONE, "") for fault in refusals]
        return CreateAclsResponse(results=[_Created(error_code=code, error_message=text) for code, text in outcomes])

    @serves(Api.DELETE_ACLS, 1, 3)
    async def delete_acls(self, context: RequestContext, request: Any) -> Any:
        wanted = [_read(AclFilter, each, _FILTER) for each in request.filters]
        if refusal := self._refusal(context, AclOperation.ALTER):
            return DeleteAclsResponse(filter_results=[_Deleted(**refusal) for _ in wanted])
        found = [tuple(filter(each.matches, self._catalog.state.acls)) for each in wanted]
        await self._catalog.alter_acls(lambda now: now - set(chain(*found)))
        results = []
        for each, matching in zip(wanted, found, strict=True):
            text = _unknown(each)
            code = Code.INVALID_REQUEST if text else Code.NONE
            kind = _Deleted.DeleteAclsMatchingAcl
            removed = [] if text else [kind(error_message=None, **_fields(acl, _MATCHING)) for acl in matching]
            results.append(_Deleted(error_code=code, error_message=text, matching_acls=removed))
        return DeleteAclsResponse(filter_results=results)

    def _refusal(self, context: RequestContext, operation: AclOperation) -> dict[str, Any] | None:
        """The fields of a refusal; without an authorizer every answer says so."""
        if self._catalog.properties.authorizer_class_name is None:
            return {"error_code": Code.SECURITY_DISABLED, "error_message": "No Authorizer is configured."}
        if context.access.allows(operation, Resource.CLUSTER, CLUSTER_NAME):
            return None
        return {"error_code": Code.CLUSTER_AUTHORIZATION_FAILED, "error_message": "Cluster authorization failed."}


#: Fields of `Acl` by their names in a matching rule of DeleteAcls, in CreateAcls, and in filters.
_MATCHING: Final = {
    "resource_type": "resource",
    "pattern_type": "pattern",
    "resource_name": "name",
    "principal": "principal",
    "host": "host",
    "operation": "operation",
    "permission_type": "permission",
}
_CREATION: Final = {"resource_pattern_type" if name == "pattern_type" else name: to for name, to in _MATCHING.items()}
_CODED: Final = ("operation", "permission_type")
_FILTER: Final = {name if name in _CODED else f"{name}_filter": to for name, to in _MATCHING.items()}
_DESCRIBED: Final = ("principal", "host", "operation", "permission_type")
_Asked = TypeVar("_Asked", Acl, AclFilter)


def _fields(acl: Acl, names: Iterable[str]) -> dict[str, Any]:
    return {theirs: getattr(acl, _MATCHING[theirs]) for theirs in names}


def _read(kind: type[_Asked], asked: Any, names: Mapping[str, str]) -> _Asked:
    """As in Kafka, a request with the code UNKNOWN (0) ends its connection: real clients never send it."""
    found = kind(**{ours: getattr(asked, theirs) for theirs, ours in names.items()})
    if 0 in codes_of(found):
        raise RemoteProtocolError(peer="the client", detail=f"an ACL with the code UNKNOWN: {found}")
    return found


def codes_of(rule: Acl | AclFilter) -> tuple[int, int, int, int]:
    return rule.resource, rule.pattern, rule.operation, rule.permission


def refusal_of(acl: Acl) -> tuple[Code, str | None] | None:
    """Why a rule cannot be added, as in Kafka 4.4.0 (UNKNOWN_SERVER_ERROR for ANY and MATCH, which are of filters)."""
    if AclFilter.ANY in codes_of(acl) or acl.pattern == AclFilter.MATCH:
        return Code.UNKNOWN_SERVER_ERROR, None
    checks = (
        (acl.resource == Resource.CLUSTER and acl.name != CLUSTER_NAME, _ONE_CLUSTER),
        (not acl.name, "Invalid empty resource name"),
        (acl.resource not in set(Resource), "Invalid resourceType UNKNOWN"),
        (acl.pattern not in set(PatternCode), "Invalid patternType UNKNOWN"),
        (acl.operation not in OPERATION_CODES, "Invalid operation UNKNOWN"),
        (acl.permission not in set(PermissionCode), "Invalid permissionType UNKNOWN"),
        (not acl.host, "Host pattern cannot be null or empty"),
        (":" not in acl.principal, f"Could not parse principal from `{acl.principal}` {_NO_COLON}"),
    )
    return next(((Code.INVALID_REQUEST, text) for applies, text in checks if applies), None)


def _unknown(wanted: AclFilter) -> str | None:
    """Kafka's error for a deletion filter with an unknown code; such a filter matches no rule."""
    if wanted.operation > OPERATION_CODES[-1] or wanted.permission > max(PermissionCode):
        return "Unknown entryFilter."
    if wanted.resource > max(Resource) or wanted.pattern > max(PatternCode):
        return "Unknown patternFilter."
    return None
