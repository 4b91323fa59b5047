"""Writer schemas: those with which values were written, asked of the schema registry by the ids in the records."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from spark_2pc_sink.errors import SchemaRegistryError
from spark_2pc_sink.extras import extra
from spark_2pc_sink.options.schema_registry import SchemaRegistryOptions

if TYPE_CHECKING:
    from collections.abc import Callable

_COMPILE_S_MAX: Final = 60
_FILE: Final = "written.proto"


class WriterSchemas:
    """Each schema is asked for once.

    Args:
        options: how to reach the registry.
    """

    def __init__(self, options: SchemaRegistryOptions) -> None:
        self._options = options
        with extra("avro"):
            library: Any = importlib.import_module("confluent_kafka.schema_registry")
        self._client = library.SchemaRegistryClient.new_client(dict(options.client))
        self.avro: Callable[[int], Any] = cache(self._avro)
        self.protobuf: Callable[[int, tuple[int, ...]], Any] = cache(self._protobuf)

    def _avro(self, schema_id: int) -> Any:
        with extra("avro"):
            schema: Any = importlib.import_module("fastavro.schema")
        return schema.parse_schema(json.loads(self._text(schema_id)))

    def _protobuf(self, schema_id: int, indexes: tuple[int, ...]) -> Any:
        with extra("protobuf"):
            pools: Any = importlib.import_module("google.protobuf.descriptor_pool")
            files: Any = importlib.import_module("google.protobuf.descriptor_pb2")
            factory: Any = importlib.import_module("google.protobuf.message_factory")
            importlib.import_module("google.type.date_pb2")
            importlib.import_module("grpc_tools")
        pool = pools.DescriptorPool()
        for file in files.FileDescriptorSet.FromString(_compiled(self._text(schema_id))).file:
            pool.Add(file)
        described: Any = list(pool.FindFileByName(_FILE).message_types_by_name.values())[indexes[0]]
        for index in indexes[1:]:
            described = described.nested_types[index]
        return factory.GetMessageClass(described)

    def _text(self, schema_id: int) -> str:
        """The text of a schema.

        Raises:
            SchemaRegistryError: the registry does not have it, or does not answer.
        """
        try:
            return str(self._client.get_schema(schema_id).schema_str)
        except Exception as error:
            # Of the client, of its HTTP library, or of the login: for the reader they all mean this.
            operation, detail = f"reading schema {schema_id}", f"{type(error).__name__}: {error}"
            raise SchemaRegistryError(url=self._options.shown_url, operation=operation, detail=detail) from error


def _compiled(text: str) -> bytes:
    """Descriptors of the file and of all that it imports, by Google's compiler."""
    roots = [
        Path(str(sys.modules["grpc_tools"].__file__)).parent / "_proto",
        Path(str(sys.modules["google.type.date_pb2"].__file__)).parents[2],
    ]
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / _FILE, Path(folder) / "descriptors"
        source.write_text(text)
        subprocess.run(
            [sys.executable, "-m", "grpc_tools.protoc", "--include_imports", f"--descriptor_set_out={target}"]
            + [f"--proto_path={root}" for root in [folder, *roots]]
            + [str(source)],
            check=True,
            timeout=_COMPILE_S_MAX,
        )
        return target.read_bytes()
