"""Ours beside a hand-written loop, in one process, and our journal beside LangGraph's checkpointer: `make bench`.

LangGraph has an environment of its own, the one of `make bench-peers`; where it is not there and cannot be made, it is
left out, and the output says why. Everything beside everybody else: `peers`.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.benchmarks import (
    aims,
    console,
    endurance,
    machine,
    outside_input,
    own_time,
    parsing,
    report,
    rounds,
    stores,
    trigger,
    typed,
    workers,
)
from tests.benchmarks.cases import JOURNALLED
from tests.benchmarks.measure import Case, Figures, run_case
from tests.benchmarks.peers.roster import DBOS, LANGGRAPH_ASYNC, OURS, ROSTER
from tests.benchmarks.quiet import QuietMachine

CASES = (
    Case("50 turns, 1 tool", 50, 1, 0.0, 31),
    Case("1,000 turns, 1 tool", 1_000, 1, 0.0, 9),
    Case("50 turns, 5 tools", 50, 5, 0.0, 21),
    Case("no tools", 50, 0, 0.0, 21),
    Case("no tools, 5 ms model", 50, 0, 0.005, 5),
    Case("50 turns, 1 tool, 5 ms model", 50, 1, 0.005, 5),
    Case("50 turns, 5 tools, 5 ms model", 50, 5, 0.005, 5),
    Case("journalled, 50 ms model", 50, 1, 0.05, 5, journalled=True),
    Case("journalled, 500 ms model", 20, 1, 0.5, 2, journalled=True),
)
JOURNALS = (OURS, "langgraph", LANGGRAPH_ASYNC.name, DBOS.name)
"""Whose journalled turns and resumes are shown: ours, and the store that a user would pick instead."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures to this file as well")
    parser.add_argument("--only", default="", help="only cases whose name contains this")
    parser.add_argument(
        "--environments", type=Path, default=Path(".venv", "peers"), help="folder of LangGraph's environment"
    )
    parser.add_argument("--offline", action="store_true", help="install nothing")
    options = parser.parse_args()
    print(f"Python {platform.python_version()}, {platform.system()} {platform.machine()}")
    quiet = QuietMachine()
    if options.json:
        quiet.require()
    loops = [case for case in CASES if options.only in case.name]
    journalled = rounds.chosen(JOURNALLED, options.only)
    figures: list[Any] = [asdict(one) for one in (_loops(loops) if loops else ())]
    figures += _parts(options.only)
    if journalled:
        rows = _journalled(journalled, options.environments.absolute(), install=not options.offline)
        figures += [asdict(one) for one in rows]
    print("", *aims.lines(json.loads(aims.PEERS.read_text(encoding="utf-8")), aims.kept()), sep="\n")
    if refusal := quiet.refusal():
        raise SystemExit(refusal)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    if beyond := own_time.beyond(figures):
        raise SystemExit(beyond)


def _parts(only: str) -> list[Any]:
    """Measure what has a module of its own here."""
    figures: list[Any] = []
    if only in f"{trigger.NAME}, all telemetry":
        told = trigger.measure()
        print("", *trigger.rows(told), sep="\n", flush=True)
        figures.append(asdict(told))
    for part in (parsing, outside_input):
        if only in part.NAME:
            read = part.measure()
            print("", *part.rows(read), sep="\n", flush=True)
            figures += [asdict(one) for one in read]
    if only in typed.NAME:
        objects = typed.measure()
        print("", *typed.rows(objects), sep="\n", flush=True)
        figures.append(asdict(objects))
    if only in stores.NAME:
        stored = stores.measure()
        print("", *stores.lines(stored), stores.mark_cost().line(), sep="\n", flush=True)
        figures += [asdict(one) for one in stored]
    if only in endurance.NAME:
        one, many = endurance.measure()
        print("", *endurance.lines(one, many), sep="\n", flush=True)
        figures += [asdict(block) for block in (*one, *many)]
    if only in own_time.NAME:
        for runs in own_time.PARTS_OF_A_SECOND:
            beside = own_time.beside_models(runs)
            print("", own_time.about(runs), *own_time.model_lines(beside), sep="\n", flush=True)
            figures += [asdict(one) for one in beside]
    return figures + _processes(only)


def _processes(only: str) -> list[Any]:
    """Measure what has processes of its own."""
    figures: list[Any] = []
    if only in console.NAME:
        watched = console.measure()
        print("", *console.lines(watched), sep="\n", flush=True)
        figures.append(asdict(watched))
    if only in workers.NAME:
        carried, takeover = workers.measure()
        print("", *workers.lines(carried, takeover), sep="\n", flush=True)
        figures += [asdict(one) for one in (*carried, takeover) if one is not None]
    return figures


# ---- the loop beside a hand-written one ----


def _loops(cases: Sequence[Case]) -> list[Figures]:
    print(
        "µs a turn: hand-written loop, the same with the telemetry of full (h+t), the machine bare,"
        " and full: with JSON log and all metrics"
    )
    print(
        f"{'case':29} {'hand':>7} {'h+t':>7} {'bare':>7} {'full':>7} {'h+t/h':>6} {'bare/h':>7} {'full/h':>7}"
        f" {'spread':>13} {'p95 full/h':>11} {'p95 full/h+t':>13}"
    )
    figures = []
    for case in cases:
        figures.append(run_case(case))
        print(_row(figures[-1]), flush=True)
    by_name = {one.case.name: one for one in figures}
    if {"50 turns, 1 tool", "1,000 turns, 1 tool"} <= set(by_name):
        growth = by_name["1,000 turns, 1 tool"].full_us / by_name["50 turns, 1 tool"].full_us
        print(f"a turn of 1,000 costs {growth:.2f} x a turn of 50")
    return figures


def _row(one: Figures) -> str:
    low, high = one.spread
    return (
        f"{one.case.name:29} {one.hand_us:7.1f} {one.watched_us:7.1f} {one.bare_us:7.1f} {one.full_us:7.1f} "
        f"{one.watched_ratio:6.2f} {one.bare_ratio:7.2f} {one.full_ratio:7.2f} {low:6.2f}-{high:<6.2f} "
        f"{one.p95_ratio:11.3f} {one.watched_p95_ratio:13.3f}"
    )


# ---- journalled ----


def _journalled(wanted: Sequence[rounds.Case], environments: Path, *, install: bool) -> list[rounds.Row]:
    """Measure both on the working directory's disk, in the folder for journals that git ignores."""
    rows: list[rounds.Row] = []
    Path(".orchestrator").mkdir(exist_ok=True)
    with ExitStack() as open_:
        disk = Path(open_.enter_context(tempfile.TemporaryDirectory(dir=Path(".orchestrator").absolute())))
        contestants = [
            open_.enter_context(entry.contestant(environments, install=install, timeout=600.0))
            for entry in (*ROSTER, LANGGRAPH_ASYNC, DBOS)
            if entry.name in JOURNALS
        ]
        about = {}
        for one in contestants:
            (disk / one.name).mkdir()
            about[one.name] = report.ask_about(one, str(disk / one.name))
        print("", *report.introduce(machine.about(disk), about), sep="\n", flush=True)
        for case in wanted:
            rows.append(rounds.run_case(case, contestants, disk))
            print("", *report.block(rows[-1]), sep="\n", flush=True)
    print("", *report.legend(rows), "", report.JOURNAL, sep="\n")
    for name, told in about.items():
        if why := told.get("not_measured"):
            print("", f"LEFT OUT: {name}: {why}; `make bench` makes it, without --offline", sep="\n")
    return rows


if __name__ == "__main__":
    main()
