"""Why brokers that say nothing let nobody in, as the sink's own connections would tell it.

librdkafka tries a certificate or a password that is refused again until its deadline, and then says that there was no
answer. Only who waits for the first answer asks here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from spark_2pc_sink.errors import KafkaTimeoutError
from spark_2pc_sink.options import KafkaOptions
from spark_2pc_sink.producer.cluster import Cluster

_LIMIT_MS: Final = 3_000


def check_login(options: KafkaOptions) -> None:
    """Return where the brokers let us in, or do not answer.

    Raises:
        AuthorizationError: the credentials or a certificate are refused, or the protocol is another one.
    """
    bounded = replace(options, max_block_ms=min(options.max_block_ms, _LIMIT_MS))
    with Cluster(bounded) as cluster:
        try:
            cluster.features()
        except KafkaTimeoutError:
            # They may answer yet: who called waits on, and has an error of its own.
            return
