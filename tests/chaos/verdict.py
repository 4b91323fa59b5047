"""What must be true at the end of a run, and what was found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from spark_2pc_sink import VerifyReport
from spark_2pc_sink.testing import MultisetDifference
from spark_2pc_sink.verification.report import Verdict as VerifyVerdict
from tests.chaos.watch import Ends, Partition


@dataclass
class Verdict:
    """The end of one run.

    Attributes:
        lost: records and rows of the input that are missing on a side.
        twice: those that are there more often than in the input.
        complaints: everything that is wrong, as sentences; what is lost and twice too.
        verdicts: what verify said of each job.
    """

    lost: int = 0
    twice: int = 0
    complaints: list[str] = field(default_factory=list)
    verdicts: list[str] = field(default_factory=list)

    def compared(self, job: str, comparison: Mapping[str, MultisetDifference]) -> None:
        """Add a job's comparison of each output with its input."""
        for output, difference in comparison.items():
            self.lost += difference.missing.total()
            self.twice += difference.duplicated.total()
            if difference:
                self.complaints.append(f"{job}, {output}: {difference}")
            if not difference.expected:
                self.complaints.append(f"{job}, {output}: nothing was expected, so nothing was shown")

    def verified(self, job: str, report: VerifyReport, *, says: VerifyVerdict = "same") -> None:
        """Add what `spark_2pc_sink.verify` says of a job, which does not know its input.

        Args:
            job: its name.
            report: of verify.
            says: what it says when nothing is wrong; without "same" it does not compare the table.
        """
        if not report.known or report.verdict != says:
            self.complaints.append(f"{job}, verify: {report}")
        elif not (report.records and report.batches and (report.rows or says != "same")):
            self.complaints.append(f"{job}, verify: nothing was compared, so nothing was shown: {report}")
        self.verdicts.append(str(report))

    def at_rest(self, ends: Mapping[Partition, Ends], rows: Mapping[str, str]) -> None:
        """Add where partitions end and what the state rows say.

        Args:
            ends: of all partitions.
            rows: status of the state row by transactional id.
        """
        self.complaints += _open(ends)
        self.complaints += [
            f"the state row of {name} is {status!r}" for name, status in rows.items() if status != "done"
        ]


def _open(ends: Mapping[Partition, Ends]) -> Iterator[str]:
    for (topic, number), end in ends.items():
        if end.stable != end.high:
            yield f"{topic}-{number}: last stable offset {end.stable}, high watermark {end.high}: a transaction is open"
