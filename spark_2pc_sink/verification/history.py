"""The history of the state row against the topics: the offsets each batch claims, and the records at them.

It is fed with history lines and with records, and keeps no record. The lines of a history need not all belong to
batches of one query: a person may have let another query take the row (its batches count from 0 again), or continued
without batches that are lost. Such lines have nothing to compare, but they explain records that would otherwise look
foreign.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Final, cast

import xxhash

from jdbc_state import DECIDED, DONE, OWED, HistoryLine, StateRow
from jdbc_state.history import ACCEPTED, ADOPTED, PASSED
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.plural import counted
from spark_2pc_sink.verification.report import BatchResult, Difference

if TYPE_CHECKING:
    from confluent_kafka import Message

    from spark_2pc_sink.verification.verification import Evidence

#: First and last offset, or first offset and end, by partition.
Ranges = Mapping[TopicPartition, tuple[int, int]]
#: For a range with an unknown end.
OPEN_END: Final = 2**63 - 1

# --- the digest of records ------------------------------------------------------------------------------------------
# The sink's own, recomputed from what Kafka returns. The format is that of `spark_2pc_sink.wire.record_batch`,
# deliberately written a second time: a bug in the code that writes must not be repeated by the code that checks. A test
# compares both. Each record has a 128-bit hash (XXH3, seeded by its topic) of key, value and headers, each preceded by
# its length as Kafka encodes it; the digest is their sum modulo 2^128.

MODULUS: Final = 1 << 128
Headers = Sequence[tuple[str, "bytes | None"]]


class _Lengths(dict[int, bytes]):
    """Lengths as Kafka encodes them in a record (zigzag varint), -1 if absent; for nearly all without a Python call."""

    def __missing__(self, length: int) -> bytes:
        rest = length << 1 if length >= 0 else 1
        encoded = bytearray()
        while rest > 0x7F:  # noqa: PLR2004 - seven bits in each byte; the high bit says that more follow
            encoded.append(rest & 0x7F | 0x80)
            rest >>= 7
        encoded.append(rest)
        return bytes(encoded)


_LENGTHS: Final = _Lengths()
_LENGTHS.update({length: _LENGTHS[length] for length in range(-1, 4_096)})
_ABSENT: Final = _LENGTHS[-1]


def content_of(key: bytes | None, value: bytes | None, headers: Headers | None) -> bytes:
    """The bytes of a record that are hashed."""
    return b"".join(
        (
            _ABSENT if key is None else _LENGTHS[len(key)] + key,
            _ABSENT if value is None else _LENGTHS[len(value)],
            value or b"",
            _headers(headers) if headers else b"\0",
        )
    )


def digest_of(topic: str, contents: Sequence[bytes]) -> int:
    """The sum of the records' hashes, modulo `MODULUS`; of one record its hash."""
    seed, hashed = xxhash.xxh3_64_intdigest(topic.encode()), xxhash.xxh3_128_intdigest
    return sum([hashed(content, seed) for content in contents]) % MODULUS


def digest_text(digest: int) -> str:
    return f"{digest:032x}"


def _headers(headers: Headers) -> bytes:
    parts = [_LENGTHS[len(headers)]]
    for name, value in headers:
        encoded = name.encode()
        parts += [_LENGTHS[len(encoded)], encoded, _ABSENT if value is None else _LENGTHS[len(value)] + value]
    return b"".join(parts)


@dataclass(frozen=True, kw_only=True)
class HistoryBatch:
    """One batch of the history, and what the topics' logs say of it."""

    batch: int | None
    #: Number of its history line.
    decision: int
    records: int = 0
    #: '' if an operator has accepted any.
    digest: str = ""
    #: The first and the last offset in each partition.
    ranges: Ranges = field(default_factory=dict)
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    #: Its topics that do not exist any more, or were created again.
    gone: frozenset[str] = frozenset()
    #: By the database's clock; None if unknown.
    decided_at: datetime | None = None
    #: Number of rows it wrote to all tables.
    rows: int = 0
    #: Number of rows or records of each output, by its text; empty if the history lacks them.
    outputs: Mapping[str, int] = field(default_factory=dict)
    #: The database has decided it, and according to the state row, Kafka lacks it.
    in_doubt: bool = False
    #: Why it cannot be compared; '' if it can. Its ranges still explain records.
    unknown: str = ""
    #: Why read_committed consumers do not see it; '' if they do.
    hidden: str = ""
    #: It is to be compared.
    in_scope: bool = True

    @property
    def topics(self) -> frozenset[str]:
        return frozenset(partition.topic for partition in self.ranges)

    @property
    def present(self) -> Ranges:
        """The ranges in the topics that are still there."""
        return {at: bounds for at, bounds in self.ranges.items() if at.topic not in self.gone}


@dataclass(frozen=True)
class TopicLogs:
    #: Ids of the topics that exist; '' if the brokers have no ids.
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    #: The first retained offset of each partition.
    starts: Mapping[TopicPartition, int] = field(default_factory=dict)
    #: ends, written: one past the last offset that read_committed consumers see, and one past that of the log.
    ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    written: Mapping[TopicPartition, int] = field(default_factory=dict)
    #: Topics whose superseded records the brokers remove.
    compacted: frozenset[str] = frozenset()

    def replaced(self, claim: HistoryBatch) -> frozenset[str]:
        """The claim's topics that no longer exist, or were created again; only ids tell them apart."""
        return frozenset(
            topic
            for topic in claim.topics
            if (now := self.topic_ids.get(topic)) is None or (now and claim.topic_ids.get(topic, now) not in ("", now))
        )


@dataclass(frozen=True, kw_only=True)
class Claims:
    """All batches in the history, the oldest first, each with its last attempt."""

    claims: tuple[HistoryBatch, ...] = ()
    #: Index of the first claim of the query that owns the state row: batch ids are its own from there.
    newest_query: int = 0
    #: No batch of the sink is older than these.
    from_the_start: bool = False
    #: Pairs of successive batches with a gap between them: (3, 5) if 4 is missing.
    skipped: tuple[tuple[int, int], ...] = ()

    @property
    def topics(self) -> frozenset[str]:
        return frozenset().union(*(claim.topics | claim.topic_ids.keys() for claim in self.claims))

    @property
    def batch_ids(self) -> list[int]:
        """Batches of the query that owns the state row."""
        return [claim.batch for claim in self.claims[self.newest_query :] if claim.batch is not None]


def claims_of(row: StateRow | None, lines: Sequence[HistoryLine], *, cluster_id: str) -> Claims:
    """Read the batches from a history, the oldest first; without one from the state row, if that is not lost."""
    if not lines and row is not None:
        lines = [HistoryLine("", row)]
    claims: list[HistoryBatch] = []
    skipped: list[tuple[int, int]] = []
    newest_query = 0
    for number, line in enumerate(lines):
        if line.event == ADOPTED:
            # A copy of the row with another owner. If that is another query, it has written nothing yet.
            newest_query = len(claims) if line.row.batch_id is None else newest_query
            continue
        if line.row.batch_id is None and line.event != PASSED:
            continue
        claim = _claim(line, claims, newest=number == len(lines) - 1, cluster_id=cluster_id)
        before = claims[-1].batch if len(claims) > newest_query else None
        if before is not None and claim.batch == before:
            # The newer line has the records of what was resent; those of the older one were aborted.
            claims.pop()
        elif before is not None and claim.batch not in (None, before + 1) and line.event != PASSED:
            skipped.append((before, int(claim.batch or 0)))
        claims.append(claim)
    first = lines[0].row if lines else None
    whole = first is not None and (first.batch_id is None or (first.batch_id == 0 and lines[0].event != ADOPTED))
    return Claims(claims=tuple(claims), newest_query=newest_query, from_the_start=whole, skipped=tuple(skipped))


def _claim(line: HistoryLine, before: Sequence[HistoryBatch], *, newest: bool, cluster_id: str) -> HistoryBatch:
    row = line.row
    claim = HistoryBatch(
        batch=row.batch_id,
        decision=row.decision,
        records=row.record_count,
        digest=row.digest,
        ranges={TopicPartition.parse(name): at for name, at in row.kafka_offsets.items()},
        topic_ids=dict(row.topic_ids),
        # A batch without records is settled by its decision, so the time of settling is not a separate one.
        decided_at=row.decided_at if row.record_count else row.settled_at,
        rows=row.row_count,
        outputs=dict(line.figures.get("outputs", {})),
        in_doubt=newest and row.status in (DECIDED, OWED),
    )
    if row.cluster_id not in (None, cluster_id):
        return replace(claim, ranges={}, unknown=f"it was written to another Kafka cluster, {row.cluster_id}")
    if line.event == PASSED:
        # Offsets of the batches that were skipped: those in the row now that were not in it before.
        known = {at: last for earlier in before for at, (_, last) in earlier.ranges.items()}
        fresh = {at: (known.get(at, first - 1) + 1, last) for at, (first, last) in claim.ranges.items()}
        fresh = {at: (first, last) for at, (first, last) in fresh.items() if first <= last}
        why = "an operator continued without it, because the database had lost it"
        return replace(claim, ranges=fresh, unknown=why)
    if line.event == ACCEPTED:
        why = "an operator named it after state row and history were lost, so its number of records is unknown"
        return replace(claim, ranges={at: (first, OPEN_END) for at, (first, _) in claim.ranges.items()}, unknown=why)
    if claim.records and not claim.digest and row.status in (DONE, OWED):
        return replace(claim, unknown="an operator gave up its records in Kafka, or accepted any replay of it")
    if claim.records and not claim.ranges:
        return replace(claim, unknown="the history does not have its offsets")
    return claim


@dataclass
class Found:
    """Counted records; ``seen`` has the first and the last offset of one in each partition. The digest is a batch's."""

    records: int = 0
    digest: int = 0
    seen: dict[TopicPartition, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Stretch:
    """Consecutive records of one claim, or of none, from index ``start`` to ``stop`` of the input."""

    start: int
    stop: int
    #: Index; -1 for none.
    claim: int
    #: Index of the claim that they belong to, or follow; -1 for records before the first claim.
    order: int


class PartitionClaims:
    """The ranges of one partition: first and last offset, and index of the claim. Overlapping ones end at the next."""

    def __init__(self, ranges: Sequence[tuple[int, int, int]]) -> None:
        ordered = sorted(ranges)
        #: In addition the end of all offsets, so that each range has a next one.
        self._firsts = [*(first for first, _, _ in ordered), OPEN_END + 1]
        self._lasts = [min(last, after - 1) for (_, last, _), after in zip(ordered, self._firsts[1:], strict=True)]
        self._claims = [claim for _, _, claim in ordered]

    def claim_at(self, offset: int) -> int:
        """Index of the claim that has an offset; -1 for none."""
        return self.stretches([offset])[0].claim

    def stretches(self, offsets: Sequence[int], start: int = 0) -> list[Stretch]:
        """Split ascending offsets where one claim ends and another begins; those before ``start`` are omitted."""
        found = []
        while start < len(offsets):
            at = bisect_right(self._firsts, offsets[start]) - 1
            inside = at >= 0 and offsets[start] <= self._lasts[at]
            end = self._lasts[at] if inside else self._firsts[at + 1] - 1
            stop = bisect_right(offsets, end, start)
            order = self._claims[at] if at >= 0 else -1
            found.append(Stretch(start, stop, order if inside else -1, order))
            start = stop
        return found


class Tally:
    """Counts records inside and outside of claims; records that are read again are not counted again."""

    def __init__(self, claims: Sequence[HistoryBatch]) -> None:
        #: By partition, the offset up to which records were counted (exclusive).
        self.reached: dict[TopicPartition, int] = {}
        self.found: list[Found] = [Found() for _ in claims]
        #: Records outside of claims, by their partition and the index of the claim that they follow, -1 for none.
        self.unclaimed: dict[tuple[TopicPartition, int], Found] = {}
        self.records: int = 0
        ranges: dict[TopicPartition, list[tuple[int, int, int]]] = {}
        for index, claim in enumerate(claims):
            for partition, (first, last) in claim.present.items():
                ranges.setdefault(partition, []).append((first, last, index))
        self._partitions = {partition: PartitionClaims(found) for partition, found in ranges.items()}

    def of(self, partition: TopicPartition) -> PartitionClaims:
        return self._partitions.get(partition) or PartitionClaims([])

    def take(self, partition: TopicPartition, offsets: Sequence[int], contents: Sequence[bytes]) -> None:
        """Count records of one partition, whose offsets ascend."""
        new = bisect_right(offsets, self.reached.get(partition, 0) - 1)
        self.reached[partition] = max(self.reached.get(partition, 0), offsets[-1] + 1)
        self.records += len(offsets) - new
        for stretch in self.of(partition).stretches(offsets, new):
            first, last, records = offsets[stretch.start], offsets[stretch.stop - 1], stretch.stop - stretch.start
            if stretch.claim >= 0:
                found = self.found[stretch.claim]
                found.digest += digest_of(partition.topic, contents[stretch.start : stretch.stop])
                found.digest %= MODULUS
            else:
                found = self.unclaimed.setdefault((partition, stretch.order), Found())
            found.records += records
            found.seen[partition] = (found.seen.get(partition, (first, last))[0], last)


def offsets_of(messages: Sequence[Message]) -> list[int]:
    """The offsets of records; librdkafka's types allow None, but consumed records have one."""
    return cast("list[int]", [message.offset() for message in messages])


def headers_of(message: Message) -> Headers | None:
    """The headers of a record; librdkafka's types are wider than what a consumer gets."""
    return cast("Headers | None", message.headers())


def judge(evidence: Evidence, tally: Tally) -> tuple[BatchResult, ...]:
    """Compare every batch of the scope with the records read, and report the differences."""
    known = evidence.claims
    for before, after in known.skipped:
        text = f"the history skips from batch {before} to batch {after}"
        evidence.differences.add(Difference(kind="gap", text=text, batch=before + 1))
    if not evidence.has_digests:
        evidence.differences.skip("digests of batches", "they also cover rows that go to a table and to no topic")
    pairs = zip(known.claims, tally.found, strict=True)
    results = tuple(_result(evidence, claim, found) for claim, found in pairs if claim.in_scope)
    for (at, after), left in tally.unclaimed.items():
        records, (first, last) = counted(left.records, "record"), left.seen[at]
        if after < 0 and not known.from_the_start:
            what = f"{records} of {at} before offset {last + 1} against the history"
            evidence.differences.skip(what, "it does not reach back that far")
            continue
        where = "before the first batch" if after < 0 else f"after batch {known.claims[after].batch}"
        text = f"{records} {where} {'belongs' if left.records == 1 else 'belong'} to no batch in the history"
        evidence.differences.add(Difference(kind="gap", text=text, **asdict(at), offset=first, last_offset=last))
    return results


def _result(evidence: Evidence, claim: HistoryBatch, found: Found) -> BatchResult:
    result = BatchResult(batch=claim.batch, decision=claim.decision, records=claim.records, found=found.records)
    if why := claim.unknown or claim.hidden:
        evidence.differences.skip(f"batch {claim.batch} against the history", why)
        return replace(result, found=None, checked=False)
    differing, digest_same = list(_lost(evidence, claim)), None
    if packed := sorted(claim.topics & evidence.logs.compacted):
        why = "log compaction removes records that later ones supersede"
        evidence.differences.skip(f"record counts and digests of batches in {', '.join(packed)}", why)
    elif not differing:
        digest_same = digest_text(found.digest) == claim.digest or not claim.records if evidence.has_digests else None
        differing = list(_changed(evidence, claim, found, digest_same=digest_same))
    for difference in differing:
        evidence.differences.add(replace(difference, batch=claim.batch))
    return replace(result, digest_same=digest_same, same=not differing)


def _lost(evidence: Evidence, claim: HistoryBatch) -> Iterator[Difference]:
    """The records of the batch that are gone with its topic or log."""
    for topic in sorted(claim.gone):
        was, now = claim.topic_ids.get(topic, "") or "unknown", evidence.logs.topic_ids.get(topic)
        place = asdict(min(at for at in claim.ranges if at.topic == topic))
        if now is None:
            text = f"topic {topic} had the id {was} when the batch was written, and does not exist now"
        else:
            text = f"topic {topic} was deleted and created again: its id was {was}, and is now {now}"
        yield Difference(kind="topic_deleted" if now is None else "topic_remade", text=text, **place)
    for partition, (first, last) in sorted(claim.present.items()):
        start, end = evidence.logs.starts.get(partition), evidence.logs.written.get(partition)
        if start is None or end is None:
            text = f"partition {partition} does not exist any more"
        elif start > first:
            text = f"the log begins at offset {start}"
        elif end <= last:
            text = f"the log ends at offset {end}"
        else:
            continue
        text += f"; the batch had offsets {first} to {last}"
        yield Difference(kind="truncated", text=text, **asdict(partition), offset=first, last_offset=last)


def _changed(
    evidence: Evidence, claim: HistoryBatch, found: Found, *, digest_same: bool | None
) -> Iterator[Difference]:
    if found.records != claim.records:
        text = f"the topics have {counted(found.records, 'record')} in its offsets, but it wrote {claim.records}"
        yield Difference(kind="batch_count", text=text)
    elif digest_same is False:
        text = f"the digest of its records is {digest_text(found.digest)}, but was {claim.digest} when written"
        yield Difference(kind="digest", text=text)
    many = found.records - claim.records
    if many > 0 and evidence.has_digests:
        # The hash of a single stranger is the excess in the digest.
        wanted = (found.digest - int(claim.digest, 16)) % MODULUS
        place = _locate(evidence, claim, wanted) if many == 1 else None
        if place is not None:
            at, first = place
            text, last = "this record does not belong to the batch", first
        else:
            at, (first, last) = min(claim.ranges.items())
            text = f"{many} of the {counted(found.records, 'record')} in its offsets do not belong to it"
        yield Difference(kind="stranger", text=text, **asdict(at), offset=first, last_offset=last)
    for at, (first, last) in sorted(claim.ranges.items()):
        seen = found.seen.get(at)
        if seen != (first, last):
            there = "no record" if seen is None else f"records from offset {seen[0]} to {seen[1]}"
            text = f"the batch had offsets {first} to {last}, in which readers find {there}"
            yield Difference(kind="offsets", text=text, **asdict(at), offset=first, last_offset=last)


def _locate(evidence: Evidence, claim: HistoryBatch, wanted: int) -> tuple[TopicPartition, int] | None:
    """The record in a batch's ranges that has a hash."""
    bounds = evidence.bounds_of([claim], evidence.logs.ends)
    for at, messages in evidence.reader.read(bounds):
        for message in messages:
            content = content_of(message.key(), message.value(), headers_of(message))
            if digest_of(at.topic, [content]) == wanted:
                return at, message.offset() or 0
    return None
