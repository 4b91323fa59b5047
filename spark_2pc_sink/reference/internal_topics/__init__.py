"""Kafka's internal topics: their names, and their records as bytes by Kafka's own schemas.

The ``.json`` files in this package are those of Apache Kafka 4.4.0 (``common/message`` in its libraries
kafka-transaction-coordinator and kafka-group-coordinator), unchanged; kafka-python makes a class from each, with the
same generated functions as for requests. Every record begins with an int16: the record type in a key, the version in
a value.
"""

from __future__ import annotations

import struct
from functools import cache
from io import BytesIO
from types import new_class
from typing import Any, Final

from kafka.protocol.api_data import ApiData
from kafka.protocol.consumer import metadata as consumer_metadata

from spark_2pc_sink.errors import RemoteProtocolError

TRANSACTION_STATE: Final = "__transaction_state"
GROUP_OFFSETS: Final = "__consumer_offsets"
#: Topics that clients may read but must not produce to or add to a transaction (``Topic.INTERNAL_TOPICS``). As in Kafka
#: the last name is reserved without a share coordinator.
INTERNAL_TOPICS: Final = frozenset({TRANSACTION_STATE, GROUP_OFFSETS, "__share_group_state"})

#: A string outside of flexible versions has an int16 length.
STRING_BYTES_MAX: Final = 32767

_PREFIX: Final = struct.Struct(">h")


def _patched(_: type, schema: dict[str, Any]) -> dict[str, Any]:
    """Adapt a schema to kafka-python: the type ``data``, versions of every field, and tags in order."""
    fields = [{"versions": field.get("taggedVersions"), **field} for field in schema["fields"]]
    return {**schema, "type": "data", "fields": sorted(fields, key=lambda field: field.get("tag", -1))}


def _class(name: str) -> Any:
    patch: dict[str, Any] = {"json_patch": classmethod(_patched)}
    return new_class(name, (ApiData,), {"load_json": __package__}, lambda namespace: namespace.update(patch))


TransactionLogKey: Any = _class("TransactionLogKey")
TransactionLogValue: Any = _class("TransactionLogValue")
OffsetCommitKey: Any = _class("OffsetCommitKey")
OffsetCommitValue: Any = _class("OffsetCommitValue")
GroupMetadataKey: Any = _class("GroupMetadataKey")
GroupMetadataValue: Any = _class("GroupMetadataValue")
#: A consumer's subscription when it joins a group; a part of GroupMetadataValue. kafka-python includes this schema.
ConsumerProtocolSubscription: Any = consumer_metadata.ConsumerProtocolSubscription


def encode(record: Any, version: int | None = None) -> bytes:
    """A value in ``version``; without one a key, which has only version 0, and its type in front."""
    prefix = record.json["apiKey"] if version is None else version
    try:
        return _PREFIX.pack(prefix) + bytes(record.encode(version=version or 0, header=False))
    except struct.error as error:
        detail = f"what no {type(record).__name__} can hold: {error}"
        raise RemoteProtocolError(peer="the client", detail=detail) from error


def prefix_of(data: bytes, *, peer: str) -> int:
    """The leading number of a key or a value; ``peer`` names its writer."""
    if len(data) < _PREFIX.size:
        raise RemoteProtocolError(peer=peer, detail=f"a record of {len(data)} bytes")
    return int(_PREFIX.unpack_from(data)[0])


def decode_value(kind: Any, data: bytes, *, peer: str) -> Any:
    """Decode a value of class ``kind``; unknown tags from a later Kafka are skipped (KIP-915)."""
    version = prefix_of(data, peer=peer)
    if not 0 <= version <= kind.max_version:
        raise RemoteProtocolError(peer=peer, detail=f"{kind.__name__} v{version}")
    return decode(kind, data, version=version, peer=peer)


def decode(kind: Any, data: bytes, *, version: int, peer: str, prefix_only: bool = False) -> Any:
    """Decode a record as ``version``, whatever its prefix; with ``prefix_only`` later versions may have more fields."""
    prefix_of(data, peer=peer)
    rest = BytesIO(data[_PREFIX.size :])
    try:
        found = kind.decode(rest, version=version, header=False)
        _refuse_nulls(found, version)
    except (ValueError, IndexError, OverflowError, struct.error) as error:
        raise RemoteProtocolError(peer=peer, detail=f"{kind.__name__} v{version} cannot be read: {error}") from error
    left = len(rest.read())
    if left and not prefix_only:
        raise RemoteProtocolError(peer=peer, detail=f"{left} bytes after the end of {kind.__name__} v{version}")
    return found


def _refuse_nulls(record: Any, version: int) -> None:
    """Reject nulls that the schema does not allow; kafka-python reads them anyway."""
    kind: Any = type(record)
    required, lists = _checked_fields(kind, version)
    for name in required:
        if getattr(record, name) is None:
            raise ValueError(f"{name} is null")
    for name in lists:
        for part in getattr(record, name) or ():
            _refuse_nulls(part, version)


@cache
def _checked_fields(kind: Any, version: int) -> tuple[list[str], list[str]]:
    written = {name: field for name, field in kind.fields.items() if field.tag is None and field.for_version_q(version)}
    required = [name for name, field in written.items() if not field.nullable_for_version_q(version)]
    return required, [name for name, field in written.items() if field.is_struct_array()]
