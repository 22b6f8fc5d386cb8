"""What is measured, before and after, beside its aim and its best peer: `python -m tests.benchmarks.aims`.

A figure comes from the results of `make bench-peers`, or it is a number in the output of another command, which
`--take` runs. Both are kept in `results/`, so one table shows figures that were taken on different days. Figures of
ours have log and metrics on.

    python -m tests.benchmarks.aims                     # the table, of the figures that are kept
    python -m tests.benchmarks.aims --take turn         # first run the commands of the aims whose name has "turn"
    python -m tests.benchmarks.aims OTHER/peers.json    # the table, with other results of `make bench-peers`
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from tests.benchmarks import report
from tests.benchmarks.cases import BUSY, PLOTTED
from tests.benchmarks.peers.roster import OURS, ROSTER

RESULTS: Final = Path(__file__).parent / "results"
PEERS: Final = RESULTS / "peers.json"
TAKEN: Final = RESULTS / "aims.json"
"""Name of an aim -> figure [median, least, greatest], and the day on which it was taken."""

AGENTS: Final = ("burr", "langgraph", "pydantic-ai", "openai-agents", "llama-index")
"""The contestants that are agent libraries."""


class Told:
    """Figures of a file of results. Raises KeyError for a figure that was not measured."""

    def __init__(self, results: Mapping[str, Any]) -> None:
        self._workloads = {one["name"]: one["contestants"] for one in results["workloads"]}

    def __call__(self, case: str, figure: str, who: str = OURS) -> list[float]:
        """Return median, least and greatest; of a tiny case too."""
        name = next((one for one in self._workloads if one.startswith(case)), case)
        spread: list[float] = self._workloads[name][who][figure]
        return spread

    def best(self, case: str, figure: str, *, at_least: bool) -> tuple[float, str]:
        """Return the best median of the other agent libraries, and the name of that library."""
        found = []
        for entry in ROSTER:
            if entry.name in AGENTS:
                try:
                    found.append((self(case, figure, entry.name)[0], entry.title))
                except KeyError:
                    continue
        if not found:
            raise KeyError(figure)
        return max(found) if at_least else min(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """A figure that is to be at most, or at least, a bound."""

    name: str
    bound: float | None
    """None: the figure is stated and has no bound."""
    at_least: bool = False
    before: float | None = None
    """The figure at commit f6be353."""
    case: str = ""
    """The workload of `make bench-peers` that it comes from, by the beginning of its name; or else:"""
    figure: str = ""
    """Figure of that workload."""
    command: str = "make bench-peers"
    number: str = ""
    """A regular expression: its groups are the figure in the output of the command, and its least and greatest."""
    unit: float = 1.0
    """The numbers in the output times this are the figure."""
    peer: str = ""
    """A regular expression with the groups `figure` and `name` for the best peer in the output."""

    def spread(self, told: Told, taken: Mapping[str, Any]) -> Sequence[float]:
        """Return median, least and greatest. Raises KeyError if it was not measured."""
        return told(self.case, self.figure) if self.case else taken[self.name]["figure"]

    def read(self, output: str) -> dict[str, Any]:
        """Return what the output of the command says, with today's date. Raises ValueError without the number."""
        found = re.search(self.number, output, re.MULTILINE)
        if found is None:
            raise ValueError(f"no number of {self.name} in: {output[-300:]}")
        values = [float(one.replace(",", "")) * self.unit for one in found.groups()]
        read = {
            "figure": values if len(values) == 3 else values * 3,
            "taken": datetime.now(UTC).date().isoformat(),
        }
        if self.peer and (peer := re.search(self.peer, output, re.MULTILINE)):
            read["peer"] = f"{peer['figure']} {peer['name']}"
        return read

    def row(self, told: Told, taken: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the cells of the table."""
        sign = "≥" if self.at_least else "≤"
        aim = "stated" if self.bound is None else f"{sign} {_short(self.bound)}"
        peer = taken.get(self.name, {}).get("peer", "-")
        if self.case:
            with suppress(KeyError):
                figure, title = told.best(self.case, self.figure, at_least=self.at_least)
                peer = f"{_short(figure)} {title}"
        before = "-" if self.before is None else _short(self.before)
        try:
            median, low, high = self.spread(told, taken)
        except KeyError:
            return self.name, before, "not measured", "", aim, "", peer, self.command
        reached = self.bound is None or (median >= self.bound if self.at_least else median <= self.bound)
        word = "" if self.bound is None else "reached" if reached else "missed"
        spread = "" if low == high else f"{_short(low)}-{_short(high)}"
        return self.name, before, _short(median), spread, aim, word, peer, self.command


HEADS: Final = ("measure", "before", "after", "spread", "aim", "", "best peer", "command")


def _instructions(contestant: str, before: float, bound: float | None) -> Aim:
    name = {
        "watched": "by hand, same log and metrics",
        "bare": "without log and metrics",
        "full": "all telemetry",
    }
    return Aim(
        name=f"instructions of a turn, {name[contestant]}",
        before=before,
        bound=bound,
        command="python -m tests.benchmarks.instructions",
        number=rf"^{contestant} +([\d,]+) instructions",
    )


def _command(words: str, bound: float, before: float | None = None) -> Aim:
    return Aim(
        name=f"ms of orchestrator {words}",
        before=before,
        bound=bound,
        command="python -m tests.benchmarks.incident",
        number=rf"^ *([\d.]+) s \(([\d.]+) to ([\d.]+)\).*: orchestrator {words}$",
        unit=1e3,
    )


def _beside(runs: int) -> Iterator[Aim]:
    command = f"python -m tests.benchmarks.own_time models {runs}"
    each = f"full, {runs} runs? +"
    yield Aim(
        name=f"p95 of a turn beside a real model by that of the hand-written loop, runs at once: {runs}",
        bound=1.02,
        command=command,
        number=rf"^{each}.* ([\d.]+)$",
    )
    for name, group in (("median", r"([\d.]+)"), ("p95", r"[\d.]+ +([\d.]+)")):
        yield Aim(
            name=f"ms of own time of a turn beside a real model, {name}, runs at once: {runs}",
            bound=None,
            command=command,
            number=rf"^{each}{group}",
        )


AIMS: Final = (
    # a turn
    _instructions("watched", 382_000, None),
    _instructions("full", 982_000, 800_000),
    _instructions("bare", 818_000, 650_000),
    Aim(
        name="calls of a turn, without log and metrics",
        bound=180,
        command="python -m tests.benchmarks.turn_calls",
        number=r"^bare\n(?:.*\n)*?\s*(\d+)  calls in",
    ),
    Aim(name="cpu µs of a turn", before=212, bound=None, case=PLOTTED[0], figure="cpu_us_per_turn"),
    Aim(name="cpu µs of a turn of 1,000", before=215, bound=None, case=PLOTTED[1], figure="cpu_us_per_turn"),
    # durable
    Aim(
        name="durable turns a second, 1 run",
        before=742,
        bound=1_000,
        at_least=True,
        case="journalled, 1 run of 30 turns",
        figure="turns_per_s",
    ),
    Aim(
        name="durable turns a second, 1 run, all cores busy",
        before=99,
        bound=185,
        at_least=True,
        command=f'python -m tests.benchmarks --only "{BUSY.name}"',
        number=rf"^{BUSY.name}\n.*\n  ours +([\d,.]+) +([\d,.]+) - ([\d,.]+)",
        peer=rf"^{BUSY.name}\n(?:.*\n)*?  (?P<name>langgraph) +(?P<figure>[\d,.]+)",
    ),
    Aim(
        name="durable turns a second, 100 runs",
        before=2_218,
        bound=2_500,
        at_least=True,
        case="journalled, 100 runs",
        figure="turns_per_s",
    ),
    Aim(
        name="durable turns a second, 20 runs",
        before=1_934,
        bound=None,
        at_least=True,
        case="journalled, 20 runs",
        figure="turns_per_s",
    ),
    Aim(
        name="p95 of a durable turn beside a 50 ms model by that of the hand-written loop",
        bound=1.05,
        command='python -m tests.benchmarks --offline --only "journalled, 50 ms model"',
        number=r"^journalled, 50 ms model .* ([\d.]+) +[\d.]+$",
    ),
    # p95
    Aim(name="p95 of a turn beside a 5 ms model, ms", bound=None, case="5 ms model, 1 tool", figure="p95_ms"),
    *_beside(1),
    *_beside(100),
    # waiting runs
    Aim(
        name="KiB of a waiting run",
        before=28,
        bound=18,
        case="10,000 runs",
        figure="kib_per_run",
    ),
    Aim(
        name="KiB of a waiting run, by the allocator",
        bound=None,
        command="python -m tests.benchmarks.waiting_runs full",
        number=r"^full: ([\d.]+) KiB a run",
    ),
    Aim(
        name="MB of 100,000 callers whose runs are evicted",
        bound=500,
        command="python -m tests.benchmarks.evicted_runs",
        number=r"^resident memory ([\d,]+) MB",
    ),
    Aim(
        name="ms from an answer to the next step of an evicted run, p95",
        bound=None,
        command="python -m tests.benchmarks.evicted_runs",
        number=r"p95 ([\d,]+) ms$",
    ),
    # many runs
    Aim(
        name="turns for each second of a core, 10,000 runs at once",
        before=2_311,
        bound=3_000,
        at_least=True,
        case="10,000 runs",
        figure="turns_per_cpu_s",
    ),
    # resume
    Aim(
        name="ms to resume 1,000 turns",
        before=49,
        bound=30,
        case="resume of 1,000",
        figure="resume_ms",
    ),
    # PostgreSQL
    Aim(
        name="turns a second, one worker on PostgreSQL",
        before=290,
        bound=None,
        at_least=True,
        command="python -m tests.benchmarks --offline --only workers",
        number=r"^ +1 +\d+ +[\d.]+ +(\d+)$",
    ),
    Aim(
        name="ms to list 100 of 100,000 runs on PostgreSQL, the slowest order",
        before=76,
        bound=50,
        command="python -m tests.benchmarks.listing",
        number=r"^postgres: ([\d.]+) ms at most",
    ),
    # import and commands
    Aim(
        name="ms of `from orchestrator import Agent`",
        before=310,
        bound=200,
        case="import and size",
        figure="import_ms",
    ),
    Aim(
        name="instructions of `from orchestrator import Agent`",
        before=1_429_000_000,
        bound=1_000_000_000,
        command="python -m tests.benchmarks.instructions",
        number=r"^import +([\d,]+) instructions",
    ),
    Aim(name="ms of `import orchestrator`", bound=100, case="import and size", figure="package_ms"),
    _command("--help", 100, 140),
    _command("runs list", 500),
    _command("runs show run1", 500),
    _command("runs events run1", 500),
)


def rows(results: Mapping[str, Any], taken: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return the rows of the table, the heads first."""
    told = Told(results)
    return [HEADS, *(aim.row(told, taken) for aim in AIMS)]


def table() -> str:
    """Return the table of the figures that are kept as Markdown."""
    heads, *others = rows(json.loads(PEERS.read_text(encoding="utf-8")), kept())
    cells = [heads, ("-",) * len(heads), *((*row[:-1], f"`{row[-1]}`") for row in others)]
    return "".join(f"| {' | '.join(row)} |\n" for row in cells)


def lines(results: Mapping[str, Any], taken: Mapping[str, Any] | None = None) -> Iterator[str]:
    """Yield the table."""
    cells = rows(results, taken or {})
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        yield "  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()


def kept() -> dict[str, Any]:
    """Return the figures of other commands that were taken before."""
    found: dict[str, Any] = json.loads(TAKEN.read_text(encoding="utf-8")) if TAKEN.exists() else {}
    return found


def take(aims: Iterable[Aim], say: Callable[[str], object] = print) -> dict[str, Any]:
    """Run the commands of some aims, each once for all its figures; return the figures kept before and these."""
    taken = kept()
    by_command: dict[str, list[Aim]] = {}
    for aim in aims:
        if not aim.case:
            by_command.setdefault(aim.command, []).append(aim)
    for command, some in by_command.items():
        say(f"running: {command}")
        words = shlex.split(command)
        done = subprocess.run([sys.executable, *words[1:]], capture_output=True, text=True, check=False)
        for aim in some:
            try:
                taken[aim.name] = aim.read(done.stdout)
            except ValueError as error:
                say(f"not measured: {error}{done.stderr[-300:]}")
    return taken


def _short(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3f}" if 0.9 < value < 1.2 else f"{value:.3g}"


def main() -> None:
    """Print the table; take figures first if they are asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("peers", nargs="?", type=Path, default=PEERS, help="results of `make bench-peers`")
    parser.add_argument(
        "--take", metavar="TEXT", help="run the commands of the aims whose name contains TEXT"
    )
    given = parser.parse_args()
    if given.take is not None:
        taken = take([aim for aim in AIMS if given.take in aim.name])
        TAKEN.write_text(report.text(taken), encoding="utf-8")
    print(*lines(json.loads(given.peers.read_text(encoding="utf-8")), kept()), sep="\n")


if __name__ == "__main__":
    main()
