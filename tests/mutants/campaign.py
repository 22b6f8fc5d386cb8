"""Draws mutants for each area and tries them, several at a time, each in a copy of the tree."""

from __future__ import annotations

import queue
import random
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.mutation import Mutant, mutants_of, sample
from tests.mutants.selection import Record
from tests.mutants.trial import Verdict, Workplace


@dataclass(frozen=True)
class Area:
    """Source files that are sampled together, and the folders of the tests that are about them."""

    source: str
    tests: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """The tree, and the limits of a trial."""

    root: Path
    roots: tuple[str, ...]
    """Source roots below the tree, in the order of `sys.path`."""
    record: Record
    patience: float = 60.0
    """Recorded seconds of tests in each batch."""
    workers: int = 2


def sources_of(root: Path, area: Area) -> dict[str, bytes]:
    """Return the files of an area."""
    return {
        path.relative_to(root).as_posix(): path.read_bytes() for path in (root / area.source).rglob("*.py")
    }


def drawn(root: Path, areas: Mapping[str, Area], seed: int, count: int) -> dict[str, list[Mutant]]:
    """Return `count` mutants of each area; an area's do not depend on which others are sampled."""
    return {
        name: sample(sources_of(root, area), count, random.Random(f"{seed} {name}"))
        for name, area in areas.items()
    }


def at_place(root: Path, areas: Mapping[str, Area], place: str) -> dict[str, list[Mutant]]:
    """Return every mutant of one line, given as `file:line`, or of one file."""
    path, _, line = place.partition(":")
    source = (root / path).read_bytes()
    found = [one for one in mutants_of(path, source) if not line or one.line == int(line)]
    compiled = [one for one in found if one.compiles(source)]
    (name,) = (name for name, area in areas.items() if path.startswith(f"{area.source}/"))
    return {name: compiled}


def tried(
    plan: Plan,
    areas: Mapping[str, Area],
    mutants: Mapping[str, Sequence[Mutant]],
    tell: Callable[[Verdict], None],
) -> dict[str, list[Verdict]]:
    """Try mutants and return the verdicts by area; `tell` is called with each verdict at once.

    A test that fails in the unchanged tree detects nothing: a mutant that it seems to detect is tried again without it.
    """
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder, ThreadPoolExecutor(plan.workers) as pool:
        free: queue.SimpleQueue[Workplace] = queue.SimpleQueue()
        for number in range(plan.workers):
            free.put(Workplace(plan.root, Path(folder, str(number)), plan.roots))

        def judged(mutant: Mutant, area: Area, unsound: Sequence[str] = ()) -> Verdict:
            source = (plan.root / mutant.path).read_bytes()
            batches = plan.record.batches(mutant, source, area.tests, plan.patience)
            workplace = free.get()
            try:
                verdict = workplace.try_mutant(mutant, batches, unsound)
            finally:
                free.put(workplace)
            tell(verdict)
            return verdict

        futures = [
            (name, pool.submit(judged, one, areas[name]))
            for name, several in mutants.items()
            for one in several
        ]
        verdicts = [(name, future.result()) for name, future in futures]
        workplace = free.get()
        unsound = workplace.failures(
            sorted({one.by for _, one in verdicts if one.by and not one.by.startswith("(")})
        )
        free.put(workplace)
        found: dict[str, list[Verdict]] = {name: [] for name in mutants}
        for name, verdict in verdicts:
            again = verdict.by in unsound
            found[name].append(judged(verdict.mutant, areas[name], unsound) if again else verdict)
    return found
