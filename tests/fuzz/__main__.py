"""Coverage-guided fuzzing with atheris: ``python -m tests.fuzz [TARGET …] [--seconds N]``, or `make fuzz`.

Each target runs in a process of its own, one after the other, from the inputs of tests/fuzz/corpus and of the runs
before. An input on which a target fails stays in ``.cache/fuzz``, and belongs into the corpus with its mend.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

from tests.fuzz.targets import CORPUS, NAMES
from tests.harness import ROOT

#: Longer inputs find no more in these targets, and fewer of them are tried.
INPUT_BYTES_MAX = 1024
#: Of one input: what takes longer has no end.
INPUT_S_MAX = 20
_COUNT = re.compile(r"stat::number_of_executed_units:\s*(\d+)")


def fuzz(target: str) -> None:
    """Run one target in this process; the flags are libFuzzer's."""
    import atheris  # noqa: PLC0415 - `make fuzz` puts it on the path

    with atheris.instrument_imports(include=["spark_2pc_sink"]):
        from tests.fuzz.targets import TARGETS  # noqa: PLC0415 - instrumented as it is loaded
    atheris.Setup(sys.argv, TARGETS[target])
    atheris.Fuzz()


def run(target: str, *, seconds: int, inputs: int, work: Path) -> tuple[int, bool]:
    """Run one target in a process of its own: how many inputs, and whether all went well."""
    found = work / "corpus" / target
    found.mkdir(parents=True, exist_ok=True)
    flags = [
        f"-max_total_time={seconds}",
        f"-runs={inputs}",
        f"-max_len={INPUT_BYTES_MAX}",
        f"-timeout={INPUT_S_MAX}",
        "-rss_limit_mb=2048",
        "-print_final_stats=1",
        f"-artifact_prefix={work}/{target}-",
    ]
    command = [sys.executable, "-m", "tests.fuzz", "--one", target, *flags, str(found), str(CORPUS / target)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, errors="replace", check=False)
    (work / f"{target}.log").write_text(done.stdout + done.stderr)
    counted = _COUNT.search(done.stderr)
    return int(counted[1]) if counted else 0, done.returncode == 0


def main() -> int:
    """Run the targets; 1 where one has failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(NAMES)}; all without one")
    parser.add_argument("--seconds", type=int, default=300, help="for each target (default: %(default)s)")
    parser.add_argument("--inputs", type=int, default=-1, help="end a target after so many (default: by time alone)")
    parser.add_argument("--work", type=Path, default=ROOT / ".cache" / "fuzz", help="where inputs and logs are kept")
    given = parser.parse_args()
    inputs, failed = 0, []
    for target in given.targets or NAMES:
        count, well = run(target, seconds=given.seconds, inputs=given.inputs, work=given.work)
        inputs += count
        failed += [] if well else [target]
        outcome = "no failure" if well else f"FAILED, see {given.work / target}.log"
        print(f"{target}: {count} inputs, {outcome}", flush=True)
    print(f"inputs={inputs} failed={len(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        target = sys.argv.pop(2)
        del sys.argv[1]
        fuzz(target)
    else:
        sys.exit(main())
