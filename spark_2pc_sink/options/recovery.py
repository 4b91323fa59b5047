"""The options of recovery and of a status, in addition to those that they share with a sink."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from spark_2pc_sink.choices import OperatorDecision
from spark_2pc_sink.options.common import CommonOptions, contradiction
from spark_2pc_sink.options.settings import check_settings, setting


@dataclass(frozen=True, kw_only=True)
class RecoveryOptions(CommonOptions):
    """Everything that ``recover(...)`` takes in addition to :class:`CommonOptions`; decisions are for one call."""

    dry_run: bool = setting(default=False, why="only say what would be done; nothing is claimed or changed")
    take_over: bool = setting(
        default=False,
        why="also where the driver lives, by its database sessions, which this then stops; or where they do not tell, "
        "and the row was touched within takeover_grace_s",
    )
    decision: OperatorDecision | None = setting(  # noqa: RUF009 - makes a field
        None, why="a person's decision about a batch that Kafka may lack"
    )
    batch: int | None = setting(
        None,
        at_least=0,
        at_most=2**63 - 1,
        why="with decision the batch that is meant, which the refusal names: no other is touched. With "
        "open_transaction 'commit' its batch: the newest in the checkpoint's offsets/ that is not in its commits/",
    )
    open_transaction: Literal["commit", "abort"] | None = setting(
        None,
        why="with adopt, where the state row and its history are lost and Kafka has a transaction open: 'commit' when "
        "the table has the rows of its records, 'abort' when it has none of them",
    )
    takeover_grace_s: int = setting(
        300,
        unit="s",
        at_least=0,
        at_most=86_400,
        why="a state row that was touched later than this ago may have a running sink. Recovery then takes it over "
        "only if told to, where database sessions do not tell (behind a pooler in transaction mode, on a standby)",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        decision: object = self.decision
        given, rule, remedy = "open_transaction", "", ""
        if decision is not None and not isinstance(decision, OperatorDecision):
            given, rule = "decision", "it is an OperatorDecision"
            remedy = "pass OperatorDecision.DROP or OperatorDecision.ACCEPT_REPLAY"
        elif self.open_transaction is not None and not self.adopt:
            rule, remedy = "it is about an id whose state row is lost, which has to be adopted", "pass adopt too"
        elif self.open_transaction == "commit" and self.batch is None:
            given, rule = "batch", "it comes with open_transaction='commit'"
            remedy = "pass the newest batch in the checkpoint's offsets/ that is not in its commits/"
        elif self.batch is not None and self.open_transaction != "commit" and self.decision is None:
            given, rule = "batch", "it comes with open_transaction='commit' or a decision, and with nothing else"
            remedy = "leave it out, or say what is decided about that batch"
        if rule:
            raise contradiction(given, getattr(self, given), rule, remedy)


@dataclass(frozen=True, kw_only=True)
class StatusOptions:
    """What ``status(...)`` takes in addition to the connections and the names of tables.

    Raises:
        ConfigurationError: a value is out of bounds.
    """

    match: str | None = setting(None, why="of all sinks, those whose ids fit this glob, such as 'orders-*'; None: all")
    timeout_s: int = setting(
        10,
        unit="s",
        at_least=1,
        at_most=3_600,
        why="the longest look at both sides together. What one of them does not tell until then is said, with what the "
        "other one knows",
    )

    def __post_init__(self) -> None:
        check_settings(self)
