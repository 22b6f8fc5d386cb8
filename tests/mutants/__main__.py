"""`python -m tests.mutants`: record the lines that tests execute, then report the mutants that no test detects.

No library fits. mutmut replaces each function by a switch between its mutants, but the machine finds hooks by the names
and signatures of functions. cosmic-ray and mutatest change the tree in place, do not select tests by line and do not
remove statements; mutatest does not support Python 3.11.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
from pathlib import Path

from tests.mutants.campaign import Area, Plan, at_place, drawn, tried
from tests.mutants.recording import FOLDER, ROOTS
from tests.mutants.report import is_enough, read_equivalents, report
from tests.mutants.selection import Record
from tests.mutants.trial import Verdict
from tests.tiers import SELECTED

ROOT = Path(__file__).resolve().parents[2]
RECORD = ROOT / ".mutants"
EQUIVALENTS = Path(__file__).with_name("equivalent.toml")

AREAS = {
    "kernel": Area("orchestrator/kernel", ("tests/kernel",)),
    "guards": Area("guards/orchestrator_guards", ("tests/guards",)),
    "llm_loop": Area("callbacks/orchestrator_callbacks/llm_loop", ("tests/callbacks",)),
    "journal": Area("orchestrator/journal", ("tests/journal",)),
    "telemetry": Area("orchestrator/telemetry", ("tests/telemetry",)),
    "runtime": Area("orchestrator/runtime", ("tests/runtime",)),
    "engines": Area("orchestrator/engines", ("tests/engines",)),
}
TESTS = (
    "guards", "kernel", "callbacks", "engines", "journal", "telemetry", "runtime", "machines", "rlm", "testing",
    "drawing", "console", "web", "contract", "examples", "cli", "providers", "crash", "dashboards", "hosts", "repl",
    "test_*.py",
)  # fmt: skip
"""Tests that are recorded: folders, and the files directly in `tests`."""


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return 1 where an area is below its rate."""
    options = _parser().parse_args(arguments)
    if options.record is not None or not RECORD.exists():
        _record(options.record or _recorded_paths())
    seed = random.SystemRandom().randrange(2**16) if options.seed is None else options.seed
    areas = {name: AREAS[name] for name in options.area or AREAS}
    mutants = at_place(ROOT, AREAS, options.at) if options.at else drawn(ROOT, areas, seed, options.sample)
    total = sum(len(some) for some in mutants.values())
    _say(f"{total} mutants, --seed {seed} --sample {options.sample}")
    plan = Plan(ROOT, ("", "callbacks", "guards"), Record(RECORD, ROOT), options.patience, options.workers)
    verdicts = tried(plan, AREAS, mutants, _tell)
    equivalents = read_equivalents(EQUIVALENTS)
    for line in report(verdicts, equivalents):
        _say(line)
    return 0 if is_enough(verdicts, equivalents) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make mutants", description="Report mutants that no test detects.")
    parser.add_argument("--seed", type=int, help="repeats a sample; printed by each run")
    parser.add_argument("--sample", type=int, default=15, help="mutants of each area (default: 15)")
    parser.add_argument("--area", action="append", choices=sorted(AREAS), help="only this area; repeatable")
    parser.add_argument(
        "--at", metavar="FILE[:LINE]", help="every mutant of a line or of a file, and no sample"
    )
    parser.add_argument(
        "--patience", type=float, default=60.0, help="seconds of tests to survive (default: 60)"
    )
    parser.add_argument("--workers", type=int, default=2, help="mutants tried at a time (default: 2)")
    parser.add_argument(
        "--record",
        nargs="*",
        metavar="PATH",
        help="record again the lines that tests execute: all tests, or these paths",
    )
    return parser


def _recorded_paths() -> list[str]:
    return [str(path.relative_to(ROOT)) for name in TESTS for path in sorted((ROOT / "tests").glob(name))]


def _record(paths: list[str]) -> None:
    """Run tests folder by folder and store what each executes."""
    folders = os.pathsep.join(area.source for area in AREAS.values())
    environment = {**os.environ, FOLDER: str(RECORD), ROOTS: folders}
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "tests.mutants.recording"]
    for path in paths:
        _say(f"recording {path}")
        subprocess.run(
            [*command, "-m", SELECTED["test"], "--tb=no", path], cwd=ROOT, env=environment, check=False
        )


def _tell(verdict: Verdict) -> None:
    said = (
        f"detected by {verdict.by.splitlines()[0]}" if verdict.detected else f"SURVIVES {verdict.tests} tests"
    )
    _say(f"{verdict.mutant}: {said}")


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201  the report is what this program is for


if __name__ == "__main__":
    sys.exit(main())
