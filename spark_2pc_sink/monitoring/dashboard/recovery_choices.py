"""Recovery choices: what a person may choose for one sink in the dashboard, and what each choice would change.

Two kinds are offered: actions that are always safe, and a decision about one batch, whose id the page shows. Decisions
that need more than this page (adopting a row, naming batches that a database lost, ending a transaction without a row)
are left to ``spark-2pc runbook``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from jdbc_state import OWED
from spark_2pc_sink.errors import HaltCause
from spark_2pc_sink.options import OperatorDecision

if TYPE_CHECKING:
    from spark_2pc_sink.recovery.report import RecoveryReport

#: Causes found by looking at both sides that a decision about the row's batch resolves.
_SETTLED_BY_A_WORD: Final = frozenset({HaltCause.OUTCOME_LOST, HaltCause.TOPIC_REMADE})


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One radio button.

    Attributes:
        value: value in the form.
        label: a few words.
        consequence: what it changes.
        keywords: keywords of `recover`.
        reason_needed: both sides may differ afterwards, and the reason is logged.
        suggested: preselected: it is safe, and stops no driver.
    """

    value: str
    label: str
    consequence: str
    keywords: Mapping[str, Any] = field(default_factory=dict)
    reason_needed: bool = False
    suggested: bool = False


def choices(found: RecoveryReport) -> tuple[Choice, ...]:
    """The choices for a person; empty if there are none.

    Args:
        found: report of a dry run.
    """
    if found.settled or found.elsewhere or not found.known:
        return ()
    alive = found.driver is not None and found.driver.alive
    offered: list[Choice] = []
    if found.cause is None and found.actions:
        planned = "; ".join(str(action) for action in found.actions)
        if not alive:
            offered.append(
                Choice(
                    value="settle",
                    label="Settle it",
                    consequence=f"Safe: both sides end up equal. Recovery {planned}.",
                    suggested=True,
                )
            )
        if found.driver is None or found.driver.alive is not False:
            offered.append(
                Choice(
                    value="take-over",
                    label="Stop the driver, and settle it",
                    consequence="The driver lives, or may, and settles this by itself. Taking over ends its job with "
                    f"SupersededError. Recovery {planned}.",
                    keywords={"take_over": True},
                )
            )
    return (*offered, *_words_about_the_batch(found))


def _words_about_the_batch(found: RecoveryReport) -> tuple[Choice, ...]:
    """The choices about the row's batch, if Kafka may lack it."""
    row = found.row
    owed = row is not None and row.status == OWED
    if row is None or row.batch_id is None or not (owed or found.cause in _SETTLED_BY_A_WORD):
        return ()
    batch = row.batch_id
    return (
        Choice(
            value="accept-replay",
            label=f"Let batch {batch} be sent again, whatever Spark replays",
            consequence=f"For when Kafka lacks batch {batch}. The next start of the job sends its records. Where the "
            "source gives other rows now, Kafka has those, and the table keeps the old ones.",
            keywords={"decision": OperatorDecision.ACCEPT_REPLAY, "batch": batch},
            reason_needed=True,
        ),
        Choice(
            value="drop",
            label=f"Leave Kafka as it is, and count batch {batch} as done",
            consequence=f"For when Kafka has batch {batch}, or is to go without it for good. Nothing is sent.",
            keywords={"decision": OperatorDecision.DROP, "batch": batch},
            reason_needed=True,
        ),
    )


def fingerprint(found: RecoveryReport) -> str:
    """The state that a choice refers to; a form is refused if the state has changed."""
    row = found.row
    if row is None:
        return "no row"
    cause = "" if found.cause is None else found.cause.value
    kafka = "" if found.kafka is None else found.kafka.state.value
    parts = (row.generation, row.decision, row.status, row.batch_id, row.prepared_transaction_state, kafka, cause)
    return "|".join(map(str, parts))
