"""The tally: what the topics hold in the ranges that batches claim, between them, and behind them.

Pure: it is fed with records, partition by partition in the order of their offsets, and keeps no record.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.verification.claims import Claim
from spark_2pc_sink.verification.record_digest import MODULUS, digest_of


@dataclass
class Found:
    """What the ranges of one batch hold.

    Attributes:
        records: how many.
        digest: over them.
        seen: the first and the last offset of a record in each partition.
    """

    records: int = 0
    digest: int = 0
    seen: dict[TopicPartition, tuple[int, int]] = field(default_factory=dict)


@dataclass
class Unclaimed:
    """Records one behind the other that no batch claims.

    Attributes:
        partition: where.
        first, last: their offsets.
        records: how many.
        after: index of the claim before them; -1 for none.
    """

    partition: TopicPartition
    first: int
    last: int
    records: int
    after: int


@dataclass(frozen=True)
class Stretch:
    """Records one behind the other that are of one claim, or of none.

    Attributes:
        start, stop: their places in what was fed.
        claim: index; -1 for none.
        order: index of the claim that they are of, or come behind; -1 before all.
    """

    start: int
    stop: int
    claim: int
    order: int


class PartitionClaims:
    """The ranges of one partition, in the order of offsets.

    Args:
        ranges: first and last offset, and index of the claim; those that overlap end where the next begins.
    """

    def __init__(self, ranges: Sequence[tuple[int, int, int]]) -> None:
        ordered = sorted(ranges)
        self.firsts: list[int] = [first for first, _, _ in ordered]
        nexts = self.firsts[1:]
        self.lasts: list[int] = [min(last, after - 1) for (_, last, _), after in zip(ordered, nexts, strict=False)]
        self.lasts += [last for _, last, _ in ordered[-1:]]
        self.claims: list[int] = [claim for _, _, claim in ordered]

    def claim_at(self, offset: int) -> int:
        """Index of the claim that has an offset; -1 for none."""
        at = bisect_right(self.firsts, offset) - 1
        return self.claims[at] if at >= 0 and offset <= self.lasts[at] else -1

    def stretches(self, offsets: Sequence[int]) -> list[Stretch]:
        """Cut offsets, which ascend, where one claim ends and another begins."""
        found = []
        start, count = 0, len(offsets)
        while start < count:
            at = bisect_right(self.firsts, offsets[start]) - 1
            inside = at >= 0 and offsets[start] <= self.lasts[at]
            end = self.lasts[at] if inside else self.firsts[at + 1] - 1 if at + 1 < len(self.firsts) else None
            stop = count if end is None else bisect_right(offsets, end, start)
            order = self.claims[at] if at >= 0 else -1
            found.append(Stretch(start, stop, order if inside else -1, order))
            start = stop
        return found


class Tally:
    """Counts records of claims, and those of none.

    Args:
        claims: all that the history knows, the oldest first.
        gone: topics whose claims are about another topic of that name: by topic and index of the claim.
        counted: partitions whose records another tally has counted already; here they are only cut.
    """

    def __init__(
        self,
        claims: Sequence[Claim],
        gone: Mapping[str, frozenset[int]],
        counted: Collection[TopicPartition] = (),
    ) -> None:
        self._counted = frozenset(counted)
        self._done: set[TopicPartition] = set()
        self.found: list[Found] = [Found() for _ in claims]
        self.unclaimed: list[Unclaimed] = []
        self.records: int = 0
        ranges: dict[TopicPartition, list[tuple[int, int, int]]] = {}
        for index, claim in enumerate(claims):
            for partition, (first, last) in claim.ranges.items():
                if index not in gone.get(partition.topic, ()):
                    ranges.setdefault(partition, []).append((first, last, index))
        self._partitions = {partition: PartitionClaims(found) for partition, found in ranges.items()}
        self._nothing = PartitionClaims([])

    def of(self, partition: TopicPartition) -> PartitionClaims:
        """The claims on one partition."""
        return self._partitions.get(partition, self._nothing)

    def take(self, partition: TopicPartition, offsets: Sequence[int], contents: Sequence[bytes]) -> list[Stretch]:
        """Count records of one partition, whose offsets ascend.

        Returns:
            where they were cut.
        """
        stretches = self.of(partition).stretches(offsets)
        if partition in self._counted:
            return stretches
        self.records += len(offsets)
        for stretch in stretches:
            first, last = offsets[stretch.start], offsets[stretch.stop - 1]
            if stretch.claim < 0:
                self._leave(partition, first, last, stretch)
                continue
            found = self.found[stretch.claim]
            found.records += stretch.stop - stretch.start
            whole = stretch.stop - stretch.start == len(contents)
            part = contents if whole else contents[stretch.start : stretch.stop]
            found.digest = (found.digest + digest_of(partition.topic, part)) % MODULUS
            found.seen[partition] = (found.seen.get(partition, (first, last))[0], last)
        return stretches

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        """Those whose records were counted for another tally, and added to this one."""
        return frozenset(self._done)

    def add(self, other: Tally, partitions: Iterable[TopicPartition]) -> None:
        """Take over what another tally has counted.

        Args:
            other: it was made with `partitions` of this one as counted.
            partitions: all that it was fed with.
        """
        self._done.update(partitions)
        self.records += other.records
        self.unclaimed += other.unclaimed
        for found, more in zip(self.found, other.found, strict=True):
            found.records += more.records
            found.digest = (found.digest + more.digest) % MODULUS
            found.seen |= more.seen

    def _leave(self, partition: TopicPartition, first: int, last: int, stretch: Stretch) -> None:
        records = stretch.stop - stretch.start
        before = next((left for left in reversed(self.unclaimed) if left.partition == partition), None)
        if before is not None and before.after == stretch.order:
            before.last = last
            before.records += records
        else:
            self.unclaimed.append(Unclaimed(partition, first, last, records, stretch.order))
