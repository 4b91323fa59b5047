"""The user's options, validated once, as frozen values that can be pickled.

Each option is declared once, as a field with its type, default, unit, bounds and reason; `settings` says what follows
from that. The signatures of the public calls are written out for IDEs and type checkers by ``make reference-pages``.
All that is invalid raises `ConfigurationError`, which names option, value, rule and remedy, and shows no secret.

Reading order: ``settings`` (how one option is declared), ``common`` (what all calls share, recovery, a service),
``outputs`` (topics and tables) with ``layout`` (what of them is noted for a comparison), ``sink``, ``kafka`` with
``kafka_security`` (the mapping of Kafka client properties), ``database``, ``names`` and ``sql_text``, ``sources``
(files and the environment).
"""

from spark_2pc_sink.choices import OperatorDecision
from spark_2pc_sink.options.common import CommonOptions, RecoveryOptions, ServiceOptions, StatusOptions
from spark_2pc_sink.options.kafka import KafkaOptions
from spark_2pc_sink.options.names import TableName
from spark_2pc_sink.options.outputs import Lane, Records, Rows
from spark_2pc_sink.options.settings import checks_keywords
from spark_2pc_sink.options.sink import SinkOptions
from spark_2pc_sink.options.sql_text import RowSource

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
