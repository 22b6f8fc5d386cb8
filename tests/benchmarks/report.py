"""Figures beside peers, as text and as the data of a JSON file."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from tests.benchmarks.contestant import Contestant, NotMeasured
from tests.benchmarks.peers.roster import HAND, OURS, Entry
from tests.benchmarks.rounds import Column, Row

HEADINGS = {
    "p95_ms": ("p95 ms", "milliseconds of an iteration at the 95th percentile, the model's answer included"),
    "p50_ms": ("p50 ms", "the same, median"),
    "cpu_us_per_turn": (
        "cpu µs",
        "processor time of the process for a turn, which is one request of the model",
    ),
    "us_per_turn": ("wall µs", "the same by the clock"),
    "kib_per_run": ("KiB/run", "memory of the process for each run that waits, its three messages included"),
    "turns_per_cpu_s": ("turns/cpu s", "turns for each second of a core"),
    "turns_per_s": ("turns/s", "turns a second by the clock, each one durable; runs of 30 turns"),
    "write_p95_ms": ("write p95", "milliseconds of one write at the 95th percentile, waiting included"),
    "writes_per_turn": ("writes", "writes a turn"),
    "syncs_per_turn": ("syncs", "syncs a turn of all files, without those of closing the store"),
    "waits_per_turn": (
        "waits",
        "times a turn that a thread gave up its core, to wait for another one or the disk",
    ),
    "bytes_per_turn": ("bytes", "bytes a turn of the closed store"),
    "resume_ms": ("ms", "milliseconds from resuming a stopped run until its model is asked, store open"),
    "import_ms": (
        "import ms",
        "to import what a user's first lines import, an empty interpreter's start taken off",
    ),
    "package_ms": ("package ms", "to import the package by its name alone"),
    "installed_mb": ("MB", "its packages on disk, compiled files included, without pip"),
    "packages": ("packages", "distributions installed"),
}
"""Figure -> its heading and what it is."""

JOURNAL = """\
Same for all with a store: one SQLite file in WAL mode with synchronous FULL, one process with one event loop.
Ours more: before a tool runs, the model's answer and the intent to run it are on disk, so that a call cut short by
  a crash is known and not run again blindly; its result is on disk before the model is asked. Records are chained
  by hash, and resuming proves the whole chain. A lease keeps a second process out.
Ours less: what changed is stored, not the state after each step; to resume, or to see an earlier state, all records
  of the run are read.
LangGraph more: the whole state after each step is a checkpoint that can be read and branched from as it stands; to
  resume, only the last one is read. Less: that a call began is not on disk, so one cut short by a crash runs again
  whatever it had done; nothing is chained; no lease: two processes may run one thread. Its checkpoints hold all
  messages so far: bytes and time a turn grow with the run. Its documentation advises PostgreSQL for production; its
  DeltaChannel, which stores changes, is declared beta and is not used."""

BURR_JOURNAL = """\
Burr more: as LangGraph, the whole state after each step. Less: it is written after a step only, so a step cut short
  runs again; no chain, no lease. Its documentation calls this persister one for prototypes."""

_WIDTH = 20


# ---- text ----


def introduce(machine: Mapping[str, Any], about: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the lines that name machine and contestants."""
    sync = machine["sync_ms"]
    synced = f"{sync['median']:.2f} ms ({sync['low']:.2f}-{sync['high']:.2f})"
    lines = [
        f"{machine['python']}, {machine['system']}, {machine['processor']}, {machine['cores']} cores",
        f"disk {machine['file_system']}; 4 KiB written and synced: {synced}",
    ]
    for name, one in about.items():
        versions = ", ".join(f"{package} {version}" for package, version in one.get("versions", {}).items())
        told = one.get("not_measured") and f"not measured: {one['not_measured']}"
        lines.append(
            f"{name:{_WIDTH}} {told or '; '.join(filter(None, (versions, one.get('store', ''))))}".rstrip()
        )
    return lines


def ask_about(contestant: Contestant, folder: str) -> dict[str, Any]:
    """Return versions and store of a contestant, or why there is no figure."""
    try:
        return contestant.ask("about", folder=folder)
    except NotMeasured as why:
        return {"not_measured": str(why)}


def block(row: Row) -> Iterator[str]:
    """Yield the lines of a case: a contestant each, medians of the rounds, spread and ratios of the first figure."""
    figures = [name for name in row.case.figures if any(name in one.values for one in row.columns.values())]
    yield f"{row.case.name}"
    if not figures:
        figures = list(row.case.figures[:1])
    heads = "".join(f"{HEADINGS[name][0]:>13}" for name in figures[1:])
    first = HEADINGS[figures[0]][0]
    yield f"  {'':{_WIDTH}} {first:>11} {'spread':>19}{heads} {'× hand':>9} {'× ours':>9} {'rounds':>7}"
    for name, column in row.columns.items():
        yield f"  {name:{_WIDTH}} {_line(row, name, column, figures)}"


def _line(row: Row, name: str, column: Column, figures: Sequence[str]) -> str:
    if column.why_not:
        return f"not measured: {column.why_not}"
    first = figures[0]
    if first not in column.values:
        return "not measured: it has no such figure"
    low, high = (_short(bound(column.values[first])) for bound in (min, max))
    rest = "".join(
        f"{_short(column.median(figure)) if figure in column.values else '-':>13}" for figure in figures[1:]
    )
    ratios = (_ratio(row.ratios(name, yardstick, first)) for yardstick in (HAND, OURS))
    spread = f"{low} - {high}"
    return f"{_short(column.median(first)):>11} {spread:>19}{rest} {' '.join(ratios)} {column.rounds:>7}"


def _ratio(ratios: Sequence[float]) -> str:
    return f"{_short(statistics.median(ratios)) if ratios else '-':>9}"


def _short(value: float) -> str:
    """Three digits or whole numbers: more would be noise."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def legend(rows: Sequence[Row]) -> list[str]:
    """Return what the headings mean that were used."""
    used = dict.fromkeys(name for row in rows for name in row.case.figures)
    return [f"{HEADINGS[name][0]:11} {HEADINGS[name][1]}" for name in used]


# ---- data ----


def data(
    machine: Mapping[str, Any],
    entries: Sequence[Entry],
    about: Mapping[str, Mapping[str, Any]],
    rows: Sequence[Row],
) -> dict[str, Any]:
    """Return everything, for a JSON file: machine, contestants, and a figure or a reason for each in each workload."""
    return {
        "spread": "each list is [median, least, greatest] of the rounds; a ratio is taken round by round",
        "machine": dict(machine),
        "figures": {name: meaning for name, (_, meaning) in HEADINGS.items()},
        "contestants": [
            {"name": one.name, "title": one.title, "remark": one.remark, "imports": one.imports}
            | dict(about.get(one.name, {}))
            for one in entries
        ],
        "workloads": [
            asdict(row.case)
            | {"taken": machine["taken"]}
            | {"contestants": {name: _figures(row, name, column) for name, column in row.columns.items()}}
            for row in rows
        ],
    }


def merged(before: Mapping[str, Any], told: Mapping[str, Any], order: Sequence[str]) -> Mapping[str, Any]:
    """Return figures with those that were taken before of other workloads, by the same contestants on the same machine.

    Every ratio is of one workload's rounds, so workloads need not be measured on one day; each has its date. They
    stand in the `order` of the cases, whichever was measured last; what is no case any more is left out.
    """
    if not before or _subject(before) != _subject(told):
        return told
    kept = {one["name"]: one for one in (*before["workloads"], *told["workloads"])}
    return {**told, "workloads": [kept[name] for name in order if name in kept]}


def _subject(told: Mapping[str, Any]) -> object:
    machine = {name: told["machine"][name] for name in ("python", "system", "processor", "cores")}
    return machine, [(one["name"], one.get("versions")) for one in told["contestants"]]


def _figures(row: Row, name: str, column: Column) -> dict[str, Any]:
    if column.why_not:
        return {"not_measured": column.why_not}
    told: dict[str, Any] = {"rounds": column.rounds}
    for figure, values in column.values.items():
        told[figure] = _spread(values)
    for figure in row.case.figures[:1]:
        for yardstick in (HAND, OURS):
            if name != yardstick and (ratios := row.ratios(name, yardstick, figure)):
                told[f"{figure}_to_{yardstick}"] = _spread(ratios)
    return told


def _spread(values: Sequence[float]) -> list[float]:
    """Return median, least and greatest. Four digits are more than the noise leaves."""
    return [float(f"{value:.4g}") for value in (statistics.median(values), min(values), max(values))]


def text(told: Mapping[str, Any]) -> str:
    """Return the JSON file's text, a list of numbers on a line."""
    spread = re.compile(r"\[\s+([-+\d.e,\s]+?)\s+\]")
    laid_out = json.dumps(told, indent=1, ensure_ascii=False)
    return spread.sub(lambda found: f"[{' '.join(found[1].split())}]", laid_out) + "\n"
