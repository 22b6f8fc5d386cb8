"""Cases, and the rounds in which each contestant does the same work in turn."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal

from tests.benchmarks.contestant import Contestant, NotMeasured

Kind = Literal["turns", "crowd", "journalled", "resume", "footprint"]


@dataclass(frozen=True, slots=True)
class Case:
    """One workload. With no tools a run of `turns` turns is `turns` runs of a single request each."""

    name: str
    kind: Kind
    rounds: int
    turns: int = 0
    tools: int = 1
    latency: float = 0.0
    """Seconds that each answer of the model takes."""
    runs: int = 1
    """At once."""
    patience: float = 30.0
    """A contestant that has spent so many seconds on this case takes part in no further round."""
    busy: bool = False
    """Other processes use all cores meanwhile."""

    @property
    def figures(self) -> tuple[str, ...]:
        """The figures that are shown and compared, the one that counts first."""
        if self.kind == "turns":
            waits = ("p95_ms", "p50_ms") if self.latency and self.runs == 1 else ()
            return (*waits, "cpu_us_per_turn", "us_per_turn")
        return {
            "crowd": ("kib_per_run", "turns_per_cpu_s", "cpu_us_per_turn"),
            "journalled": (
                "turns_per_s",
                "write_p95_ms",
                "writes_per_turn",
                "syncs_per_turn",
                "waits_per_turn",
                "bytes_per_turn",
            ),
            "resume": ("resume_ms", "bytes_per_turn"),
            "footprint": ("import_ms", "package_ms", "installed_mb", "packages"),
        }[self.kind]

    @property
    def options(self) -> dict[str, object]:
        """What the contestant is asked for."""
        every = asdict(self)
        names = {"journalled": ("runs", "turns"), "resume": ("turns",)}
        return {name: every[name] for name in names.get(self.kind, ("runs", "turns", "tools", "latency"))}


@dataclass(slots=True)
class Column:
    """What one contestant did in each round: figure -> values. `why_not` is empty when it was measured."""

    values: dict[str, list[float]] = field(default_factory=dict)
    why_not: str = ""
    seconds: float = 0.0

    @property
    def rounds(self) -> int:
        """In how many rounds it took part."""
        return max((len(values) for values in self.values.values()), default=0)

    def note(self, answer: dict[str, float]) -> None:
        """Add a round."""
        for name, value in answer.items():
            self.values.setdefault(name, []).append(value)

    def median(self, name: str) -> float:
        """Return the median over the rounds."""
        return statistics.median(self.values[name])


@dataclass(frozen=True, slots=True)
class Row:
    """One case: contestant -> what it did."""

    case: Case
    columns: dict[str, Column]

    def ratios(self, name: str, yardstick: str, figure: str) -> Sequence[float]:
        """Return, round by round, how many times the yardstick's figure a contestant's is; empty without either."""
        one, other = self.columns.get(name), self.columns.get(yardstick)
        if one is None or other is None or one.why_not or other.why_not:
            return ()
        both = zip(one.values.get(figure, ()), other.values.get(figure, ()), strict=False)
        return [value / unit for value, unit in both if unit > 0]


def run_case(case: Case, contestants: Sequence[Contestant], disk: Path) -> Row:
    """Measure one case, stores in fresh folders on a disk. The first in a round is the last in the next."""
    columns = {contestant.name: Column() for contestant in contestants}
    with _folder(disk) as prepared, _load(os.cpu_count() or 1 if case.busy else 0):
        for contestant in contestants:
            _ready(case, contestant, prepared, columns[contestant.name])
        for number in range(case.rounds):
            for contestant in contestants if number % 2 == 0 else reversed(contestants):
                _round(case, contestant, prepared, columns[contestant.name])
    return Row(case, columns)


def _ready(case: Case, contestant: Contestant, prepared: Path, column: Column) -> None:
    """Leave what is to be resumed in a folder, and warm up: imports late, fills caches, nobody's figure."""
    if contestant.lost:
        contestant.renew()
    if case.kind not in ("journalled", "resume"):
        return
    warm_up = replace(case, runs=1, turns=min(3, case.turns)) if case.kind == "journalled" else case
    try:
        if case.kind == "resume":
            (prepared / contestant.name).mkdir()
            told = contestant.ask("prepare", folder=str(prepared / contestant.name), turns=case.turns)
            column.note(told)
        _asked(warm_up, contestant, prepared)
    except NotMeasured as why:
        column.why_not = str(why)


def _round(case: Case, contestant: Contestant, prepared: Path, column: Column) -> None:
    """Measure one contestant once. A column without a figure, or that has taken too long, is left alone."""
    if column.why_not or column.seconds > case.patience:
        return
    started = time.perf_counter()
    try:
        column.note(_asked(case, contestant, prepared))
    except NotMeasured as why:
        column.why_not = str(why)
    column.seconds += time.perf_counter() - started


def _asked(case: Case, contestant: Contestant, prepared: Path) -> dict[str, float]:
    if case.kind == "turns":
        return contestant.ask("turns", **case.options)
    if case.kind == "crowd":
        contestant.renew()  # or memory that an earlier crowd gave up would be used again, and not be seen
        try:
            return contestant.ask("crowd", **case.options)
        finally:
            contestant.renew()
    with _folder(prepared) as folder:
        if case.kind == "resume":
            shutil.copytree(prepared / contestant.name, folder, dirs_exist_ok=True)
            os.sync()  # or the copy is written back while we measure
        return contestant.ask(case.kind, folder=str(folder), **case.options)


@contextmanager
def _load(cores: int) -> Iterator[None]:
    """Keep so many cores busy inside the block."""
    spinning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(cores)]
    try:
        yield
    finally:
        for one in spinning:
            one.kill()
            one.wait()


@contextmanager
def _folder(disk: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="bench-", dir=disk) as folder:
        yield Path(folder)


def chosen(cases: Iterable[Case], only: str) -> list[Case]:
    """Return the cases whose name or kind contains a text."""
    return [case for case in cases if only in case.name or only in case.kind]
