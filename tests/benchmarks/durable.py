"""The journalled cases: rounds in which each contestant does the same work in turn, on the same disk."""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from tests.benchmarks.contestant import Contestant, NotMeasured


@dataclass(frozen=True, slots=True)
class Case:
    """One workload: `runs` at once of `turns` turns each, or one run of `turns` turns to resume."""

    name: str
    kind: Literal["journalled", "resume"]
    runs: int
    turns: int
    rounds: int

    @property
    def measure(self) -> str:
        """The figure that the ratio is taken of."""
        return "turns_per_s" if self.kind == "journalled" else "resume_ms"


CASES = (
    Case("journalled, 1 run", "journalled", 1, 30, 9),
    Case("journalled, 32 runs", "journalled", 32, 30, 5),
    Case("journalled, 100 runs", "journalled", 100, 30, 3),
    Case("resume, 500 turns", "resume", 1, 500, 5),
    Case("resume, 1,000 turns", "resume", 1, 1_000, 5),
)


@dataclass(slots=True)
class Column:
    """What one contestant did in each round: figure -> values. `why_not` is empty when all were measured."""

    values: dict[str, list[float]] = field(default_factory=dict)
    why_not: str = ""

    def note(self, answer: dict[str, float]) -> None:
        """Add a round."""
        for name, value in answer.items():
            self.values.setdefault(name, []).append(value)

    def median(self, name: str) -> float:
        """Return the median over the rounds."""
        return statistics.median(self.values[name])


@dataclass(frozen=True, slots=True)
class Row:
    """One case: contestant -> what it did, ours first."""

    case: Case
    columns: dict[str, Column]

    def ratios(self) -> Sequence[float]:
        """Return ours by the peer's, round by round; empty when one of them was not measured."""
        ours, peer = self.columns.values()
        if ours.why_not or peer.why_not:
            return ()
        both = zip(ours.values[self.case.measure], peer.values[self.case.measure], strict=True)
        return [one / other for one, other in both]


def run_case(case: Case, contestants: Sequence[Contestant], disk: Path) -> Row:
    """Measure one case in fresh folders on a disk. The first of two in a round is the second in the next."""
    columns = {contestant.name: Column() for contestant in contestants}
    with _folder(disk) as prepared:
        if case.kind == "resume":
            for contestant in contestants:
                _prepare(case, contestant, prepared / contestant.name, columns[contestant.name])
        for contestant in contestants:  # imports late, fills caches: nobody's figure
            _round(_warm_up(case), contestant, prepared, Column(why_not=columns[contestant.name].why_not))
        for number in range(case.rounds):
            for contestant in contestants if number % 2 == 0 else reversed(contestants):
                _round(case, contestant, prepared, columns[contestant.name])
    return Row(case, columns)


def _warm_up(case: Case) -> Case:
    return replace(case, runs=1, turns=min(3, case.turns)) if case.kind == "journalled" else case


def _prepare(case: Case, contestant: Contestant, folder: Path, column: Column) -> None:
    folder.mkdir()
    try:
        column.note(contestant.ask("prepare", folder=str(folder), turns=case.turns))
    except NotMeasured as why:
        column.why_not = str(why)


def _round(case: Case, contestant: Contestant, prepared: Path, column: Column) -> None:
    """Measure one contestant once, on a copy of what was prepared. A column without a figure is left alone."""
    if column.why_not:
        return
    with _folder(prepared) as folder:
        options: dict[str, object] = {"folder": str(folder), "turns": case.turns}
        if case.kind == "resume":
            shutil.copytree(prepared / contestant.name, folder, dirs_exist_ok=True)
            os.sync()  # or the copy is written back while we measure
        else:
            options["runs"] = case.runs
        try:
            column.note(contestant.ask(case.kind, **options))
        except NotMeasured as why:
            column.why_not = str(why)


@contextmanager
def _folder(disk: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="bench-", dir=disk) as folder:
        yield Path(folder)


def sync_ms(disk: Path, times: int = 50) -> list[float]:
    """Return the milliseconds that this disk takes to write 4 KiB and sync: what a commit costs at least."""
    spans = []
    with tempfile.TemporaryFile(dir=disk, buffering=0) as file:
        for _ in range(times):
            started = time.perf_counter()
            file.write(b"\0" * 4096)
            os.fsync(file.fileno())
            spans.append((time.perf_counter() - started) * 1e3)
    return spans
