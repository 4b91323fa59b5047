"""The reference coordinator as a local process: a Kafka of one node without Java, ready in a fraction of a second."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from spark_2pc_sink.testing.local_broker import LocalBroker

# As for the Kafka broker: internal topics of one partition, no waiting for members that never arrive.
_PROPERTIES = {
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
}
# KIP-939, "Broker Configuration Changes"; as in Kafka, InitProducerId v6 is offered with unstable versions only.
_TWO_PHASE_COMMIT = {"transaction.two.phase.commit.enable": "true", "unstable.api.versions.enable": "true"}
_KEEP_PREPARED = {"transaction.keep.prepared.enable": "true"}
#: Below this transaction.version prepared transactions cannot be kept (KIP-939 builds on KIP-890's epoch bump).
_KEEPING_VERSION = 2


class ReferenceCoordinator(LocalBroker):
    """``spark-2pc coordinator`` as a separate process, see `LocalBroker`.

    Args:
        transaction_version: level of the feature ``transaction.version``: 0 or 1 (KIP-98), 2 (KIP-890).
        two_phase_commit: grants ``enable2Pc`` to every client (KIP-939).
        keep_prepared: lets InitProducerId keep a prepared transaction (KIP-939), which no released Kafka does; only
            with ``two_phase_commit``.
        properties: additional broker properties, or overrides of those set here.
        node_id: its id.
    """

    def __init__(
        self,
        *,
        transaction_version: int = 2,
        two_phase_commit: bool = True,
        keep_prepared: bool = True,
        properties: Mapping[str, str] | None = None,
        node_id: int = 1,
    ) -> None:
        super().__init__(transaction_version=transaction_version, two_phase_commit=two_phase_commit, node_id=node_id)
        self.keep_prepared: bool = keep_prepared and two_phase_commit and transaction_version >= _KEEPING_VERSION
        self.properties: dict[str, str] = {
            **_PROPERTIES,
            "node.id": str(node_id),
            "transaction.version": str(transaction_version),
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},PROXIED://127.0.0.1:{self._proxied_port}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port},PROXIED://127.0.0.1:{self._proxy_port}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,PROXIED:PLAINTEXT",
            **(_TWO_PHASE_COMMIT if two_phase_commit else {}),
            **(_KEEP_PREPARED if self.keep_prepared else {}),
            **(properties or {}),
        }

    def _command(self) -> list[str]:
        settings = [f"--set={name}={value}" for name, value in self.properties.items()]
        data = f"--data-dir={self._directory / 'data'}"
        return [sys.executable, "-m", "spark_2pc_sink.cli", "coordinator", data, *settings]
