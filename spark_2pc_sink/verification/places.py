"""Places: numbers that say of a staged record in which partition it is, and how new its batch is."""

from __future__ import annotations

from collections.abc import Collection

from spark_2pc_sink.ids import TopicPartition


class Places:
    """Numbers of partitions, in the order of batches.

    Args:
        partitions: all that are read.
    """

    def __init__(self, partitions: Collection[TopicPartition]) -> None:
        self._partitions = sorted(partitions)
        self._indexes = {partition: index for index, partition in enumerate(self._partitions)}

    def __len__(self) -> int:
        return max(len(self._partitions), 1)

    def number(self, order: int, partition: TopicPartition) -> int:
        """The place of records of one partition.

        Args:
            order: index of the claim that they are of, or come behind; -1 before all.
            partition: where they are.
        """
        return self.order_number(order) * len(self) + self._indexes[partition]

    def order_number(self, order: int) -> int:
        """What a place divided by the number of partitions is."""
        return order + 1

    def partition(self, place: int) -> TopicPartition:
        """The partition of a place."""
        return self._partitions[place % len(self)]
