"""Ours beside what a user would pick instead, each in a process and an environment of its own: `make bench-peers`.

A contestant that cannot do a workload, or cannot be had, is shown with the reason. A whole run writes its figures to
`results/peers.json` and draws `results/peers.svg`; a part of it writes nothing unless a folder is named.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.benchmarks import aims, cases, footprint, machine, plot, report, rounds
from tests.benchmarks.peers.roster import ROSTER, Entry
from tests.benchmarks.quiet import QuietMachine

RESULTS = Path(__file__).parents[1] / "results"
_TIMEOUT = 300.0
"""Seconds for one answer: a contestant that takes longer in one round is not measured."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and write."""
    options = _options(arguments)
    entries = [one for one in ROSTER if not options.contestants or one.name in options.contestants.split(",")]
    every = cases.QUICK if options.quick else cases.CASES
    wanted = rounds.chosen(every, options.only)
    if not entries or not wanted:
        raise SystemExit(
            f"nothing to measure: contestants are {', '.join(one.name for one in ROSTER)};"
            f" cases are {', '.join(case.name for case in every)}"
        )
    whole = wanted == list(cases.CASES) and len(entries) == len(ROSTER)
    folder, quiet = options.results or (RESULTS if whole else None), QuietMachine()
    if folder and not options.quick:
        quiet.require()
    told = measure(
        entries,
        wanted,
        options.environments.absolute(),
        install=not options.quick,
        seconds=60 * options.minutes,
    )
    print("", *aims.lines(told, aims.kept()), sep="\n")
    if refusal := quiet.refusal():
        raise SystemExit(refusal)
    if folder:
        folder.mkdir(exist_ok=True)
        file = folder / "peers.json"
        before = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        file.write_text(
            report.text(report.merged(before, told, [case.name for case in every])), encoding="utf-8"
        )
        plot.draw(file, file.with_suffix(".svg"))
        print("", f"written: {file}, {file.with_suffix('.svg')}", sep="\n")


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench-peers", description=__doc__)
    parser.add_argument("--only", default="", help="only cases whose name or kind contains this")
    parser.add_argument("--contestants", default="", help="only these, by name, with commas between")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, and nothing is installed")
    parser.add_argument("--minutes", type=float, default=60.0, help="no case is begun after so many")
    parser.add_argument(
        "--results", type=Path, help="write the figures and the plot to this folder, into those there"
    )
    parser.add_argument("--environments", type=Path, required=True, help="folder of the environments")
    return parser.parse_args(arguments)


def measure(
    entries: Sequence[Entry], wanted: Sequence[rounds.Case], root: Path, *, install: bool, seconds: float
) -> dict[str, Any]:
    """Carry out cases, print each when it is done, and return everything."""
    rows: list[rounds.Row] = []
    ends = time.monotonic() + seconds
    with _disk() as disk, ExitStack() as open_:
        contestants = [
            open_.enter_context(one.contestant(root, install=install, timeout=_TIMEOUT)) for one in entries
        ]
        told = machine.about(disk)
        about = {one.name: report.ask_about(one, _made(disk / one.name)) for one in contestants}
        print(*report.introduce(told, about), sep="\n", flush=True)
        for case in wanted:
            if time.monotonic() > ends:
                late = f"the {seconds / 60:g} minutes given were over"
                rows.append(rounds.Row(case, {one.name: rounds.Column(why_not=late) for one in entries}))
            elif case.kind == "footprint":
                rows.append(footprint.run_case(case, entries, root, install=install))
            else:
                rows.append(rounds.run_case(case, contestants, disk))
            print("", *report.block(rows[-1]), sep="\n", flush=True)
    _close(entries, rows)
    return report.data(told, entries, about, rows)


def _close(entries: Sequence[Entry], rows: Sequence[rounds.Row]) -> None:
    print("", *report.legend(rows), sep="\n")
    print("", *(f"{one.title}: {one.remark}" for one in entries), sep="\n")
    if any(row.case.kind in ("journalled", "resume") for row in rows):
        print("", report.JOURNAL, report.BURR_JOURNAL, sep="\n")


@contextmanager
def _disk() -> Iterator[Path]:
    """Yield a fresh folder on the working directory's disk, in the folder for journals that git ignores."""
    Path(".orchestrator").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=Path(".orchestrator").absolute()) as folder:
        yield Path(folder)


def _made(folder: Path) -> str:
    folder.mkdir()
    return str(folder)


if __name__ == "__main__":
    main()
