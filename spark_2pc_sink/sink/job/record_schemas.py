"""The schemas of keys and values: the registry knows them before the first batch, and again when a type has changed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from spark_2pc_sink.sink.contract.record_columns import PARTS
from spark_2pc_sink.sink.contract.record_expressions import type_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from spark_2pc_sink.options import Lane, Records
    from spark_2pc_sink.options.outputs import Format, Part
    from spark_2pc_sink.options.schema_registry import SchemaRegistryOptions
    from spark_2pc_sink.serialisation.binding import SchemaRequest
    from spark_2pc_sink.serialisation.registry import Registry
    from spark_2pc_sink.sink.contract.record_expressions import RecordExpressions


class RecordSchemas:
    """Binds the expressions of a run to schemas. Tasks do not ask the registry, so it may be away between batches.

    Args:
        options: of the registry; None where no record needs one.
    """

    def __init__(self, options: SchemaRegistryOptions | None) -> None:
        self._options = options
        self._registries: dict[Format, Registry] = {}

    def bound(self, expressions: RecordExpressions, rows: DataFrame, lane: Lane) -> RecordExpressions:
        """The expressions with serialisers for their formats.

        Args:
            expressions: of the lane, analyzed.
            rows: of the lane, for their columns.
            lane: of the sink.

        Raises:
            ConfigurationError: there is no schema for a type, or the registry refuses it.
            SchemaRegistryError: the registry did not answer.
        """
        if lane.records is None or not expressions.formats:
            return expressions
        from spark_2pc_sink.serialisation.binding import bind  # noqa: PLC0415 - only jobs with formats need it

        serialisers = {}
        for column, part in PARTS.items():
            sql = expressions.key if part == "key" else expressions.value
            if sql is not None and part in expressions.formats:
                request = self._request(lane.records, part, expressions)
                kind = type_of(rows, part, sql)
                serialisers[column] = bind(request, kind, self._registry(expressions.formats[part]))
        return replace(expressions, serialisers=serialisers)

    def _request(self, records: Records, part: Part, expressions: RecordExpressions) -> SchemaRequest:
        from spark_2pc_sink.serialisation.binding import SchemaRequest  # noqa: PLC0415 - as above

        of_value = part == "value"
        return SchemaRequest(
            part=part,
            format=expressions.formats[part],
            topic=records.topic if expressions.topic is None else None,
            strategy=records.value_subject_name_strategy if of_value else "topic",
            schema=records.value_schema if of_value else None,
            name=records.value_schema_name if of_value else None,
        )

    def _registry(self, schema_format: Format) -> Registry:
        from spark_2pc_sink.serialisation.registry import Registry  # noqa: PLC0415 - as above

        assert self._options is not None, "checked with the options"
        if schema_format not in self._registries:
            self._registries[schema_format] = Registry(self._options, schema_format)
        return self._registries[schema_format]
