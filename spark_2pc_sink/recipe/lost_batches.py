"""Lost batches: Kafka has them and the database lacks them. A person names them, and the sink continues without.

A database that was restored from a backup, or failed over to a standby that lagged, has an old state row. The logs show
what Kafka has committed since: every transaction of this sink's producer newer than the row's was a batch. Logs do not
contain batch ids. Spark counts batches, so the ids follow that of the row; but a batch without records leaves no
transaction, so a count of transactions is a minimum, and each id means "this one or a later".

The person must name the batches. A flag without ids could be given at night to a database that lacks more than the
person thinks. A range is refused if it does not begin after the row, or is shorter than the logs show.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.ids import BatchRange, ProducerIdAndEpoch, TopicPartition
from spark_2pc_sink.plural import counted, first_of
from spark_2pc_sink.recipe.resolve import Halt

#: How many of the findings a message lists.
SHOWN_TRANSACTIONS_MAX = 10
SHOWN_PARTITIONS_MAX = 4


@dataclass(frozen=True)
class CommittedTransaction:
    """One transaction that the logs show as committed."""

    producer: ProducerIdAndEpoch
    records: int
    offsets: Mapping[TopicPartition, tuple[int, int]]

    def __str__(self) -> str:
        shown = [f"{each} {first} to {last}" for each, (first, last) in sorted(self.offsets.items())]
        places = ", ".join(first_of(shown, SHOWN_PARTITIONS_MAX, "partition"))
        return f"{counted(self.records, 'record')} of {self.producer} at offsets {places}"


@dataclass(frozen=True)
class FoundCommits:
    """A sink's transactions in the logs since its row."""

    transactions: tuple[CommittedTransaction, ...] = ()
    #: Partitions that were not read, and why: batches missing there are unknown.
    unread: tuple[str, ...] = ()


@dataclass(frozen=True)
class LostBatches:
    """Batches that the database lacks, as far as it can be known."""

    #: The batch after that of the row; the row's own if only Kafka lacked it.
    first: int
    found: FoundCommits = field(default_factory=FoundCommits)
    #: The batch that Spark has passed; None before the first.
    came: int | None = None

    @property
    def suggested(self) -> BatchRange | None:
        """The range to name if the findings are complete; None if nothing is known."""
        count = len(self.found.transactions)
        if self.came is not None:
            has_it = count > self.came - self.first
            return BatchRange(self.first, self.came if has_it else self.came - 1)
        return BatchRange(self.first, self.first + count - 1) if count else None

    def explain(self, halt: Halt) -> Halt:
        """Add the lost batches to a halt's reasons, and their ids to its choices."""
        named = self.suggested
        facts = halt.facts
        if self.came is None:
            batches = facts.batches if named is None else str(named)
            facts = replace(facts, known=facts.known | {"lost batches"}, batches=batches)
        elif named is not None and named.last == self.came:
            more = (
                f" (by their number in the logs, Kafka has batch {self.came} too, which is then skipped; restore the "
                "rows of all of them by hand, or give them up)"
            )
            facts = replace(facts, batches=str(named), more={**facts.more, "pass_over": more})
        return replace(halt, reason=". ".join((halt.reason, *self._said())), facts=facts)

    def check(self, named: BatchRange) -> None:
        rule = self._broken_rule(named)
        if rule is None:
            return
        suggested = self.suggested
        remedy = "compare both sides first" if suggested is None else f"name {str(suggested)!r}"
        raise ConfigurationError(option="accept_loss", value=str(named), rule=rule, remedy=remedy)

    def _broken_rule(self, named: BatchRange) -> str | None:
        count = len(self.found.transactions)
        if not len(named):
            if self.came is not None:
                return f"batches {self.suggested} are missing in the state row"
            return f"the logs show {count} committed transactions that the state row lacks" if count else None
        if named.first != self.first:
            return f"must begin with batch {self.first}, the first one that the state row lacks"
        if len(named) < count:
            least = counted(count, "batch")
            return f"must name at least {least}: the state row lacks that many committed transactions"
        if self.came is not None and named.last not in (self.came - 1, self.came):
            return f"Spark continues with batch {self.came}, so it must end with batch {self.came - 1} or {self.came}"
        return None

    def _said(self) -> Iterator[str]:
        found = self.found
        if found.transactions:
            listed = [f"batch {number}: {each}" for number, each in enumerate(found.transactions, self.first)]
            yield (
                f"Kafka has at least {counted(len(found.transactions), 'batch')} that the database lacks, counted from "
                f"batch {self.first} on (or later ones, if batches without records precede them): "
                f"{'; '.join(first_of(listed, SHOWN_TRANSACTIONS_MAX))}"
            )
        else:
            yield "The logs that were read show no batch that the database lacks"
        if found.unread:
            yield f"Not read, so that more may be missing: {'; '.join(found.unread)}"
