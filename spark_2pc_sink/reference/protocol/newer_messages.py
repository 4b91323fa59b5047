"""Messages in versions of Kafka 4.4.0 that kafka-python does not have yet.

Each is kafka-python's own class, made of its schema with what the newer version adds. The differences are those between
the schemas (``common/message`` in Kafka's library of clients):

- TxnOffsetCommit v6 names topics by their ids (KIP-1319);
- ApiVersions v5 says whom the client believes to be talking to (KIP-1242);
- DeleteGroups v3 has a text with each code.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from types import new_class
from typing import Any, Final, TypeAlias

from kafka.protocol import admin, metadata, producer
from kafka.protocol.api_header import ResponseClassRegistry

_Schema: TypeAlias = dict[str, Any]
_Patch: TypeAlias = Callable[[_Schema], None]


def _named(fields: list[_Schema], name: str) -> _Schema:
    return next(field for field in fields if field["name"] == name)


def _topics_by_id(schema: _Schema) -> None:
    for field in schema["fields"]:
        # Its name in OffsetCommit, and here from 4.4.0 on.
        if field["name"] == "GenerationId":
            field["name"] = "GenerationIdOrMemberEpoch"
    topic = _named(schema["fields"], "Topics")["fields"]
    _named(topic, "Name")["versions"] = "0-5"
    topic.insert(1, {"name": "TopicId", "type": "uuid", "versions": "6+", "ignorable": True})


def _whom(schema: _Schema) -> None:
    schema["fields"] += [
        {"name": "ClusterId", "type": "string", "versions": "5+", "nullableVersions": "5+", "default": "null"},
        {"name": "NodeId", "type": "int32", "versions": "5+", "default": -1},
    ]


def _texts(schema: _Schema) -> None:
    text = {"name": "ErrorMessage", "type": "string", "versions": "3+", "nullableVersions": "3+", "default": "null"}
    _named(schema["fields"], "Results")["fields"].append(text)


def _nothing(schema: _Schema) -> None:
    """Only the number of the version is new."""


def _newer(known: Any, version: int, patch: _Patch) -> Any:
    """The class of a message up to a version that its own class lacks."""

    def patched(_: type, schema: _Schema) -> _Schema:
        newer = deepcopy(schema)
        newer["validVersions"] = f"0-{version}"
        patch(newer)
        return newer

    made: Any = new_class(known.__name__, (known,), {}, lambda body: body.update({"json_patch": classmethod(patched)}))
    if not made.is_request():
        # The library's own clients in this process go on with the class that they know.
        ResponseClassRegistry.register_response_class(known)
    return made


TxnOffsetCommitRequest: Final = _newer(producer.TxnOffsetCommitRequest, 6, _topics_by_id)
TxnOffsetCommitResponse: Final = _newer(producer.TxnOffsetCommitResponse, 6, _topics_by_id)
ApiVersionsRequest: Final = _newer(metadata.ApiVersionsRequest, 5, _whom)
ApiVersionsResponse: Final = _newer(metadata.ApiVersionsResponse, 5, _nothing)
DeleteGroupsRequest: Final = _newer(admin.DeleteGroupsRequest, 3, _nothing)
DeleteGroupsResponse: Final = _newer(admin.DeleteGroupsResponse, 3, _texts)

_RESPONSES: Final = (TxnOffsetCommitResponse, ApiVersionsResponse, DeleteGroupsResponse)
#: The responses, by API key.
NEWER_RESPONSES: Final = {each.API_KEY: each for each in _RESPONSES}
#: The requests, by API key.
NEWER_REQUESTS: Final = {
    each.API_KEY: each for each in (TxnOffsetCommitRequest, ApiVersionsRequest, DeleteGroupsRequest)
}
