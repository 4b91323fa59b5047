"""The check of the history: whether the topics hold, batch by batch, what the state row's history says.

Pure: it judges what was read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.plural import counted
from spark_2pc_sink.verification.claims import OPEN_END, Claim, Claims
from spark_2pc_sink.verification.differences import Differences
from spark_2pc_sink.verification.record_digest import MODULUS, digest_text
from spark_2pc_sink.verification.report import BatchResult, Difference, DifferenceKind
from spark_2pc_sink.verification.tally import Found, Tally, Unclaimed


@dataclass(frozen=True)
class Logs:
    """The topics of a sink as Kafka describes them.

    Attributes:
        topic_ids: of the topics that exist; '' where the brokers have no ids.
        starts: the first offset that each partition still has.
        ends: one past the last offset that a reader of committed records sees.
        written: one past the last offset of each log, those of open transactions with them.
        compacted: topics whose superseded records the brokers remove.
    """

    topic_ids: Mapping[str, str] = field(default_factory=dict)
    starts: Mapping[TopicPartition, int] = field(default_factory=dict)
    ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    written: Mapping[TopicPartition, int] = field(default_factory=dict)
    compacted: frozenset[str] = frozenset()

    def holds_back(self, partition: TopicPartition, last: int) -> bool:
        """Whether the log has an offset that readers of committed records are not shown yet."""
        return self.ends.get(partition, 0) <= last < self.written.get(partition, 0)

    def replaced(self, claim: Claim) -> list[str]:
        """The claim's topics that do not exist any more, or are others of the same name."""
        return [
            topic
            for topic in sorted(claim.topics)
            if topic not in self.topic_ids or self.is_other(topic, claim.topic_ids.get(topic, ""))
        ]

    def is_other(self, topic: str, topic_id: str) -> bool:
        """Whether the topic of this name had another id; without ids nobody can tell."""
        now = self.topic_ids.get(topic, "")
        return bool(now and topic_id and now != topic_id)


def gone_claims(claims: Claims, logs: Logs) -> dict[str, frozenset[int]]:
    """By topic, the claims that are about an earlier topic of its name."""
    gone: dict[str, set[int]] = {}
    for index, claim in enumerate(claims.claims):
        for topic in logs.replaced(claim):
            gone.setdefault(topic, set()).add(index)
    return {topic: frozenset(indexes) for topic, indexes in gone.items()}


class HistoryCheck:
    """Judges the batches of a scope.

    Args:
        claims: all that the history knows.
        chosen: indexes of those in the scope.
        logs: the topics now.
        differences: takes what is found.
        digests: whether those of the history are of records alone.
        hidden: indexes of those that readers of committed records cannot see yet, and why.
        locate: finds the record of a batch that has a hash.
    """

    def __init__(
        self,
        claims: Claims,
        chosen: Collection[int],
        logs: Logs,
        differences: Differences,
        *,
        digests: bool = True,
        hidden: Mapping[int, str],
        locate: Callable[[Claim, int], tuple[TopicPartition, int] | None],
    ) -> None:
        self._claims = claims.claims
        self._known = claims
        self._chosen = frozenset(chosen)
        self._logs = logs
        self._differences = differences
        self._digests = digests
        self._hidden = hidden
        self._locate = locate

    def judge(self, tally: Tally) -> tuple[BatchResult, ...]:
        """Compare every batch of the scope with what was read; what differs goes to the differences."""
        for before, after in self._known.skipped:
            text = f"the history goes from batch {before} to batch {after}"
            self._differences.add(Difference(kind="gap", text=text, batch=before + 1))
        if not self._digests:
            self._differences.skip("digests of batches", "they are of rows too that go to a table and to no topic")
        results = tuple(self._result(index, tally.found[index]) for index in sorted(self._chosen))
        for left in tally.unclaimed:
            self._unclaimed(left)
        return results

    def _result(self, index: int, found: Found) -> BatchResult:
        claim = self._claims[index]
        why = claim.unknown or self._hidden.get(index, "")
        if why:
            self._differences.skip(f"batch {claim.batch} against the history", why)
            return BatchResult(batch=claim.batch, decision=claim.decision, records=claim.records, checked=False)
        lost = self._lost(claim)
        packed = sorted(claim.topics & self._logs.compacted)
        if packed:
            why = "log compaction removes records that later ones supersede"
            self._differences.skip(f"record counts and digests of batches in {', '.join(packed)}", why)
            return BatchResult(
                batch=claim.batch, decision=claim.decision, records=claim.records, same=not lost, found=found.records
            )
        same = self._compare(claim, found) if not lost else False
        return BatchResult(
            batch=claim.batch,
            decision=claim.decision,
            records=claim.records,
            found=found.records,
            digest_same=None if lost or not self._digests else self._digest_same(claim, found),
            same=same,
        )

    def _digest_same(self, claim: Claim, found: Found) -> bool:
        return digest_text(found.digest) == claim.digest or not claim.records

    def _lost(self, claim: Claim) -> bool:
        """Whether a part of the batch is gone with its topic or log; says so."""
        lost = False
        for topic in self._logs.replaced(claim):
            lost = True
            was, now = claim.topic_ids.get(topic, ""), self._logs.topic_ids.get(topic)
            place = min(at for at in claim.ranges if at.topic == topic)
            text = (
                f"topic {topic} had the id {was or 'unknown'} when the batch was written, and there is none any more"
                if now is None
                else f"topic {topic} was deleted and made anew: its id was {was}, and is {now} now"
            )
            self._say(claim, "topic_deleted" if now is None else "topic_remade", text, place)
        for partition, (first, last) in sorted(claim.ranges.items()):
            if partition.topic in self._logs.replaced(claim):
                continue
            start, end = self._logs.starts.get(partition), self._logs.written.get(partition)
            if start is None or end is None:
                text = f"there is no partition {partition} any more; the batch had offsets {first} to {last} of it"
            elif start > first:
                text = f"the log begins at offset {start}; the batch had offsets {first} to {last}"
            elif end <= last:
                text = f"the log ends at offset {end}; the batch had offsets {first} to {last}"
            else:
                continue
            lost = True
            self._say(claim, "truncated", text, partition, (first, last))
        return lost

    def _compare(self, claim: Claim, found: Found) -> bool:
        """Hold count, digest and offsets of a batch against the history; whether all are as it says."""
        before = self._differences.counts.total()
        if found.records != claim.records:
            text = f"the topics hold {counted(found.records, 'record')} in its offsets, and it wrote {claim.records}"
            self._say(claim, "batch_count", text)
            if found.records > claim.records and self._digests:
                self._strangers(claim, found)
        elif self._digests and not self._digest_same(claim, found):
            text = f"the digest of its records is {digest_text(found.digest)}, and was {claim.digest}"
            self._say(claim, "digest", text)
        for partition, (first, last) in sorted(claim.ranges.items()):
            seen = found.seen.get(partition)
            if seen != (first, last):
                there = "no record" if seen is None else f"records from offset {seen[0]} to {seen[1]}"
                text = f"the batch had offsets {first} to {last}, of which readers find {there}"
                self._say(claim, "offsets", text, partition, (first, last))
        return self._differences.counts.total() == before

    def _strangers(self, claim: Claim, found: Found) -> None:
        """Name the record that is not the batch's own: of one, its hash is what the digest has too much."""
        many = found.records - claim.records
        wanted = (found.digest - int(claim.digest, 16)) % MODULUS
        place = self._locate(claim, wanted) if many == 1 else None
        if place is not None:
            self._say(claim, "stranger", "this record is not the batch's own", place[0], (place[1], place[1]))
            return
        partition = min(claim.ranges)
        text = f"{many} of the {counted(found.records, 'record')} in its offsets are not its own"
        self._say(claim, "stranger", text, partition, claim.ranges[partition])

    def _unclaimed(self, left: Unclaimed) -> None:
        if left.after < 0 and not self._known.from_the_start:
            what = f"{counted(left.records, 'record')} of {left.partition} before offset {left.last + 1}"
            self._differences.skip(f"{what} against the history", "it does not reach back so far")
            return
        before = self._claims[left.after].batch if left.after >= 0 else None
        where = "before the first batch" if left.after < 0 else f"behind batch {before}"
        records = f"{counted(left.records, 'record')} {where} {'is' if left.records == 1 else 'are'}"
        text = f"{records} of no batch that the history knows"
        self._differences.add(
            Difference(
                kind="gap",
                text=text,
                topic=left.partition.topic,
                partition=left.partition.partition,
                offset=left.first,
                last_offset=left.last,
            )
        )

    def _say(
        self,
        claim: Claim,
        kind: DifferenceKind,
        text: str,
        partition: TopicPartition | None = None,
        at: tuple[int, int] | None = None,
    ) -> None:
        first, last = at or (None, None)
        self._differences.add(
            Difference(
                kind=kind,
                text=text,
                batch=claim.batch,
                topic=None if partition is None else partition.topic,
                partition=None if partition is None else partition.partition,
                offset=first,
                last_offset=None if last == OPEN_END else last,
            )
        )
