"""CreateAcls, DescribeAcls, DeleteAcls: v1 to v3, as Kafka's AclApis and AclControlManager answer."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Any, Final

from kafka.protocol.admin import CreateAclsResponse, DeleteAclsResponse, DescribeAclsResponse

from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import RemoteProtocolError
from spark_2pc_sink.reference.coordinator.events import CLUSTER_NAME, Operation, Resource
from spark_2pc_sink.reference.metadata.acls import (
    OPERATION_CODES,
    Acl,
    AclFilter,
    AclStore,
    PatternCode,
    PermissionCode,
    ResourceCode,
    refusal_of,
)
from spark_2pc_sink.reference.protocol.api import Api, Handler, Handlers, RequestContext

_VERSIONS: Final = (1, 3)
_DISABLED: Final = "No Authorizer is configured."


class AclHandlers:
    """The handlers of ACLs.

    Args:
        store: the rules; None where no authorizer is configured, as every answer says then.
    """

    def __init__(self, store: AclStore | None) -> None:
        self._store = store

    def handlers(self) -> Handlers:
        return {
            Api.DESCRIBE_ACLS: Handler(*_VERSIONS, self.describe_acls),
            Api.CREATE_ACLS: Handler(*_VERSIONS, self.create_acls),
            Api.DELETE_ACLS: Handler(*_VERSIONS, self.delete_acls),
        }

    async def describe_acls(self, context: RequestContext, request: Any) -> Any:
        """The rules that match a filter, by resource; needs DESCRIBE on the cluster."""
        wanted = _filter(request)
        code, text = self._refusal(context, Operation.DESCRIBE)
        if self._store is None or code != Code.NONE:
            return DescribeAclsResponse(error_code=code, error_message=text)
        found = sorted(filter(wanted.matches, self._store.acls))
        resources = [_resource(key, acls) for key, acls in groupby(found, key=_resource_of)]
        return DescribeAclsResponse(resources=resources)

    async def create_acls(self, context: RequestContext, request: Any) -> Any:
        """Add the rules that are well-formed; needs ALTER on the cluster."""
        acls = [_acl(creation) for creation in request.creations]
        code, text = self._refusal(context, Operation.ALTER)
        if self._store is None or code != Code.NONE:
            results = [_created(code, text) for _ in acls]
            return CreateAclsResponse(results=results)
        refusals = [refusal_of(acl) for acl in acls]
        await self._store.add(acl for acl, refusal in zip(acls, refusals, strict=True) if refusal is None)
        results = [_created(*(refusal or (Code.NONE, ""))) for refusal in refusals]
        return CreateAclsResponse(results=results)

    async def delete_acls(self, context: RequestContext, request: Any) -> Any:
        """Remove the rules that match any of the filters, and name them; needs ALTER on the cluster."""
        wanted = [_filter(each) for each in request.filters]
        code, text = self._refusal(context, Operation.ALTER)
        if self._store is None or code != Code.NONE:
            results = [_deleted(code, text) for _ in wanted]
            return DeleteAclsResponse(filter_results=results)
        found = [tuple(filter(each.matches, self._store.acls)) for each in wanted]
        await self._store.remove(acl for matching in found for acl in matching)
        results = [
            _deleted(Code.INVALID_REQUEST, text) if text else _deleted(Code.NONE, None, matching)
            for text, matching in zip(map(_unknown, wanted), found, strict=True)
        ]
        return DeleteAclsResponse(filter_results=results)

    def _refusal(self, context: RequestContext, operation: Operation) -> tuple[Code, str | None]:
        """Kafka asks whether the client may before it says that there is no authorizer, which then allows it."""
        if self._store is None:
            return Code.SECURITY_DISABLED, _DISABLED
        if not context.access.allows(operation, Resource.CLUSTER, CLUSTER_NAME):
            return Code.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed."
        return Code.NONE, None


def _acl(creation: Any) -> Acl:
    acl = Acl(
        resource=creation.resource_type,
        pattern=creation.resource_pattern_type,
        name=creation.resource_name,
        principal=creation.principal,
        host=creation.host,
        operation=creation.operation,
        permission=creation.permission_type,
    )
    _check_codes(acl)
    return acl


def _filter(asked: Any) -> AclFilter:
    wanted = AclFilter(
        resource=asked.resource_type_filter,
        pattern=asked.pattern_type_filter,
        name=asked.resource_name_filter,
        principal=asked.principal_filter,
        host=asked.host_filter,
        operation=asked.operation,
        permission=asked.permission_type,
    )
    _check_codes(wanted)
    return wanted


def _check_codes(asked: Acl | AclFilter) -> None:
    """As in Kafka, a request with the code UNKNOWN (0) ends its connection: no client can have meant it."""
    if 0 in asked.codes:
        raise RemoteProtocolError(peer="the client", detail=f"an ACL with the code UNKNOWN: {asked}")


def _unknown(wanted: AclFilter) -> str | None:
    """What Kafka says of a filter for deletion with a code that it does not know; none matches any rule."""
    if wanted.operation > OPERATION_CODES[-1] or wanted.permission > max(PermissionCode):
        return "Unknown entryFilter."
    if wanted.resource > max(ResourceCode) or wanted.pattern > max(PatternCode):
        return "Unknown patternFilter."
    return None


def _resource_of(acl: Acl) -> tuple[int, int, str]:
    return acl.resource, acl.pattern, acl.name


def _resource(key: tuple[int, int, str], acls: Iterable[Acl]) -> Any:
    of_resource = DescribeAclsResponse.DescribeAclsResource
    resource, pattern, name = key
    return of_resource(
        resource_type=resource,
        resource_name=name,
        pattern_type=pattern,
        acls=[
            of_resource.AclDescription(
                principal=acl.principal, host=acl.host, operation=acl.operation, permission_type=acl.permission
            )
            for acl in acls
        ],
    )


def _created(code: int, text: str | None) -> Any:
    return CreateAclsResponse.AclCreationResult(error_code=code, error_message=text)


def _deleted(code: int, text: str | None, acls: Iterable[Acl] = ()) -> Any:
    of_filter = DeleteAclsResponse.DeleteAclsFilterResult
    return of_filter(
        error_code=code,
        error_message=text,
        matching_acls=[
            of_filter.DeleteAclsMatchingAcl(
                error_message=None,
                resource_type=acl.resource,
                resource_name=acl.name,
                pattern_type=acl.pattern,
                principal=acl.principal,
                host=acl.host,
                operation=acl.operation,
                permission_type=acl.permission,
            )
            for acl in acls
        ],
    )
