"""`orchestrator report`: the totals of log lines. Missing lines are reported, and their values are not estimated."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer

from orchestrator.cli import option as given
from orchestrator.cli.exit import Exit
from orchestrator.cli.output import say, say_json, shown
from orchestrator.cli.screen import print_report
from orchestrator.cli.spread import spread_options
from orchestrator.errors import ConfigError
from orchestrator.files.bounded import read_lines
from orchestrator.kernel.fact import Transition
from orchestrator.telemetry.history import History

_SHOWN = 10
"""Most gaps that are named individually."""
_NO_LINE = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
"""Errors of a text that is not JSON, or not a line of our log."""


@dataclass(slots=True)
class MachineReport:
    """The figures of one graph."""

    history: History = field(default_factory=lambda: History(limit=0))
    ends: Counter[tuple[str, str]] = field(default_factory=Counter)
    seen: dict[str, set[int]] = field(default_factory=dict)
    """Run id -> the transitions read, by number."""
    announced: dict[str, int] = field(default_factory=dict)
    """Run id -> the number of its transitions according to its last line."""

    def moved(self, line: Mapping[str, Any]) -> bool:
        """Add a transition; return False if it was read before. Raises KeyError, TypeError or ValueError."""
        fact = Transition(
            str(line["machine"]),
            str(line["run_id"]),
            int(line["seq"]),
            str(line["fsm_event"]),
            str(line["from_state"]),
            str(line["to_state"]),
            float(line["state_duration_s"]),
            at=0.0,
            iteration=0,
            internal=bool(line.get("internal", False)),
        )
        seen = self.seen.setdefault(fact.run_id, set())
        if fact.seq in seen:
            return False
        seen.add(fact.seq)
        self.history.observe(fact)
        return True

    def ended(self, line: Mapping[str, Any]) -> bool:
        """Add the end of a run; return False if it was read before."""
        run_id, count = str(line["run_id"]), int(line["seq"])
        end = str(line["outcome"]), str(line["reason"])
        if run_id in self.announced:
            return False
        self.announced[run_id] = count
        self.ends[end] += 1
        return True

    def gaps(self) -> Iterator[tuple[str, int, int]]:
        """Yield (run id, first, last) of transitions without a log line."""
        for run_id in self.seen | self.announced:
            seen = self.seen.get(run_id, set())
            past = max([self.announced.get(run_id, 0), *seen]) + 1
            for before, after in pairwise(sorted({0, past} | seen)):
                if after - before > 1:
                    yield run_id, before + 1, after - 1


@dataclass(slots=True)
class LogReport:
    """The lines of all files."""

    machines: dict[str, MachineReport] = field(default_factory=dict)
    lines: int = 0
    unreadable: int = 0
    first_unreadable: str = ""
    repeated: int = 0

    def read(self, file: Path) -> None:
        """Add a file. Raises OSError."""
        for number, text in enumerate(read_lines(file), 1):
            if not text.strip():
                continue
            self.lines += 1
            try:
                line = json.loads(text)
                kind = line.get("msg")
                if kind not in ("fsm.transition", "run.completed"):
                    continue
                machine = self.machines.setdefault(str(line["machine"]), MachineReport())
                added = machine.moved(line) if kind == "fsm.transition" else machine.ended(line)
                self.repeated += not added
            except _NO_LINE:
                self.unreadable += 1
                self.first_unreadable = self.first_unreadable or f"{file}, line {number}"


@spread_options
def report_logs(
    logfile: Annotated[
        list[Path],
        typer.Argument(metavar="LOGFILE", help="JSON log lines, as TransitionLog or --log write them."),
    ],
    *,
    as_json: given.Json = False,
) -> int:
    """Report where runs spent their time, from log lines.

    It prints the visits and times of each state, the bottleneck, the outcomes, and which lines are missing.
    """
    log = LogReport()
    for file in logfile:
        log.read(file)
    if not any(machine.history.edges or machine.ends for machine in log.machines.values()):
        raise ConfigError(f"{', '.join(map(str, logfile))}: no line of a transition or of a run's end here")
    if as_json:
        machines = {name: _plain(machine) for name, machine in log.machines.items()}
        counts = {"lines": log.lines, "unreadable": log.unreadable, "repeated": log.repeated}
        say_json({"machines": machines, **counts})
        return Exit.COMPLETED
    for name, machine in log.machines.items():
        unfinished = len(machine.seen.keys() - machine.announced.keys())
        moves = sum(machine.history.edges.values())
        say(f"{shown(name)}: {moves:,} transitions of {len(machine.seen):,} runs")
        print_report(machine.history, machine.ends)
        if unfinished:
            say(f"  {unfinished:,} without an end in these lines")
        gaps = list(machine.gaps())
        for run_id, first, last in gaps[:_SHOWN]:
            say(f"  lost: run {shown(run_id)}, transition {first}" + (f" to {last}" if last > first else ""))
        if len(gaps) > _SHOWN:
            say(f"  lost: {len(gaps) - _SHOWN:,} more gaps")
    if log.repeated:
        say(f"{log.repeated:,} lines stand twice and count once")
    if log.unreadable:
        say(f"{log.unreadable:,} of {log.lines:,} lines cannot be read; the first: {log.first_unreadable}")
    return Exit.COMPLETED


def _plain(machine: MachineReport) -> dict[str, Any]:
    history = machine.history
    whole = sum(stats.total for stats in history.states.values()) or 1.0
    edge = history.commonest
    names = ("from_state", "event", "to_state")
    states = {
        name: {
            "visits": stats.visits,
            "min_s": stats.shortest,
            "mean_s": stats.mean,
            "max_s": stats.longest,
            "total_s": stats.total,
            "share": stats.total / whole,
        }
        for name, stats in history.states.items()
    }
    return {
        "states": states,
        "bottleneck": history.bottleneck,
        "commonest_edge": edge and dict(zip(names, edge, strict=True), count=history.edges[edge]),
        "runs": [{"outcome": end[0], "reason": end[1], "count": n} for end, n in machine.ends.most_common()],
        "unfinished": sorted(machine.seen.keys() - machine.announced.keys()),
        "gaps": [{"run_id": run, "first": first, "last": last} for run, first, last in machine.gaps()],
    }
