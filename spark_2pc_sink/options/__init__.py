"""The user's options, validated once, as frozen values that can be pickled.

Each option is declared once, as a field with its type, default, unit, bounds and reason. Error texts and the
documentation page are generated from that declaration. The signatures of `DualWriteSink`, `recover` and `status` are
written out, for IDEs and type checkers, and a test compares them.

Reading order: ``settings`` (how one option is declared), ``common`` (what a sink and recovery share), ``sink``,
``outputs`` with ``row_source`` (its topics and tables), ``recovery``, ``service`` (a service without Spark), ``kafka``
with ``kafka_security`` (the mapping of Kafka client properties), ``database`` (the SQLAlchemy URL), ``names`` (tables),
``keywords`` (unknown and missing ones), ``reference_page``. Only ``properties_file`` does I/O.
"""

from spark_2pc_sink.choices import OperatorDecision
from spark_2pc_sink.options.common import CommonOptions
from spark_2pc_sink.options.kafka import KafkaOptions
from spark_2pc_sink.options.keywords import checks_keywords
from spark_2pc_sink.options.names import TableName
from spark_2pc_sink.options.outputs import Lane, Records, Rows
from spark_2pc_sink.options.recovery import RecoveryOptions, StatusOptions
from spark_2pc_sink.options.row_source import RowSource
from spark_2pc_sink.options.service import ServiceOptions
from spark_2pc_sink.options.sink import SinkOptions

__all__ = [
    "CommonOptions",
    "KafkaOptions",
    "Lane",
    "OperatorDecision",
    "Records",
    "RecoveryOptions",
    "RowSource",
    "Rows",
    "ServiceOptions",
    "SinkOptions",
    "StatusOptions",
    "TableName",
    "checks_keywords",
]
