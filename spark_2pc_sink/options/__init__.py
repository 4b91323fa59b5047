"""What the user asks for, validated once, as frozen values that can be pickled.

Reading order: ``settings`` (how one default, its unit and its reason are written down), ``kafka`` (the mapping of
Kafka client properties), ``database`` (the SQLAlchemy URL), ``names`` (tables), ``sink`` (everything else). Nothing
here does I/O. The tables of defaults are the classes themselves; ``reference`` renders them.
"""

from spark_2pc_sink.options.kafka import KafkaOptions
from spark_2pc_sink.options.names import TableName
from spark_2pc_sink.options.settings import SettingRow, reference
from spark_2pc_sink.options.sink import CommonOptions, RecoveryOptions, SinkOptions

__all__ = [
    "CommonOptions",
    "KafkaOptions",
    "RecoveryOptions",
    "SettingRow",
    "SinkOptions",
    "TableName",
    "reference",
]
