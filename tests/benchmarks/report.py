"""The journalled cases as text: who was measured, on what, the figures, and what each does more or less."""

from __future__ import annotations

import os
import platform
import re
import statistics
from collections.abc import Sequence
from pathlib import Path

from orchestrator.journal.sqlite.place import file_system
from tests.benchmarks.contestant import Contestant, NotMeasured
from tests.benchmarks.durable import Column, Row, sync_ms

HEADINGS = {
    "journalled": (
        "turns a second, more is better: runs of 30 turns at once, a call of one irreversible tool in each turn",
        ("turns/s", "spread", "p95 ms", "writes", "bytes"),
        "p95 ms: of one write, waiting included; writes and bytes (files, closed): a turn; ratios and spread by round",
    ),
    "resume": (
        "milliseconds from resuming a stopped run until its model is asked again, less is better",
        ("ms", "spread", "", "", "bytes"),
        "store open, files in the page cache, same process as made the run; bytes (files, closed): a turn",
    ),
}

NOTES = """\
Same for both: a script for a model that answers at once, a tool that returns a few bytes, one SQLite file in WAL
  mode with synchronous FULL, one process with one event loop, no logs, no metrics, no tracing.
Ours more: before a tool runs, the model's answer and the intent to run it are on disk, so that a call cut short by
  a crash is known and not run again blindly; its result is on disk before the model is asked. Records are chained
  by hash, and resuming proves the whole chain. A lease keeps a second process out. Loop and budget guards are on.
Ours less: what changed is stored, not the state after each step; to resume, or to see an earlier state, all records
  of the run are read.
LangGraph more: the whole state after each step is a checkpoint that can be read and branched from as it stands; to
  resume, only the last one is read.
LangGraph less: the model's answer is on disk before its tools' step, but not that a call began, so one that was cut
  short by a crash runs again whatever it had done; nothing is chained; no lease: two processes may run one thread.
In LangGraph's favour: its node returns the scripted message itself, without a chat model around it; short messages
  (its checkpoints hold all messages so far: bytes and time a turn grow with the run). Against it: its documentation
  advises PostgreSQL for production. Its DeltaChannel, which stores changes, is declared beta and is not used."""


def introduce(contestants: Sequence[Contestant], disk: Path) -> list[str]:
    """Return the lines that name contestants, machine and disk."""
    spans = sync_ms(disk)
    sync = f"{statistics.median(spans):.2f} ms ({min(spans):.2f}-{max(spans):.2f})"
    lines = [
        "Journalled, beside LangGraph: each in a process of its own, in turn; medians of the rounds",
        f"machine    {processor()}, {os.cpu_count()} cores, {platform.system()}",
        f"disk       {file_system(disk) or 'unknown'}; 4 KiB written and synced: {sync}",
    ]
    for contestant in contestants:
        folder = disk / f"about-{contestant.name}"
        folder.mkdir()
        try:
            about = str(contestant.ask("about", folder=str(folder))["about"])
        except NotMeasured as why:
            about = f"not measured: {why}"
        lines.append(f"{contestant.name:10} {about}")
    return lines


def processor() -> str:
    """Return the name of the processor, as far as the system tells."""
    try:
        told = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        told = ""
    found = re.search(r"^model name\s*: (.+)$", told, re.MULTILINE)
    return found[1] if found else platform.processor() or platform.machine()


def heading(kind: str, names: Sequence[str]) -> list[str]:
    """Return the lines above the rows of a kind."""
    title, columns, legend = HEADINGS[kind]
    figures = "{:>9} {:>15} {:>8} {:>7} {:>8}".format(*columns)
    owners = "".join(f" | {name:<51}" for name in names)
    return [
        title,
        legend,
        f"{'':21}{owners}",
        f"{'case':21} | {figures} | {figures} | {'ratio':>6} {'spread':>13}",
    ]


def row(one: Row) -> str:
    """Return the line of a case."""
    figures = " | ".join(_column(column, one.case.measure) for column in one.columns.values())
    ratios = one.ratios()
    ratio = f"{statistics.median(ratios):6.2f} {_spread(ratios, 2):>13}" if ratios else f"{'-':>6} {'-':>13}"
    return f"{one.case.name:21} | {figures} | {ratio}"


def _column(column: Column, measure: str) -> str:
    if column.why_not:
        return f"{'not measured: ' + column.why_not:51}"
    digits = 0 if measure == "turns_per_s" else 1
    cells = [f"{column.median(measure):9,.{digits}f}", f"{_spread(column.values[measure], digits):>15}"]
    for name, form in (("write_p95_ms", "8.2f"), ("writes_per_turn", "7.2f"), ("bytes_per_turn", "8,.0f")):
        there = name in column.values
        cells.append(format(column.median(name), form) if there else " " * int(form[0]))
    return " ".join(cells)


def _spread(values: Sequence[float], digits: int) -> str:
    return f"{min(values):,.{digits}f}-{max(values):,.{digits}f}"
