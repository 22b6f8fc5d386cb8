"""Which tests concern a mutant: those that execute its line, by a record (`recording.py`), the nearest first."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.mutation import Mutant
from tests.mutants.source import names_of

FIRST_FILES, FIRST_SECONDS = 6, 10.0
"""Test files, and recorded seconds of tests, that are tried before all others: most mutants are detected by these."""


@dataclass(frozen=True)
class Batch:
    """Tests that are run together."""

    tests: tuple[str, ...]
    seconds: float


class Record:
    """What the tests execute, read from the folder that the recorder wrote."""

    def __init__(self, folder: Path) -> None:
        self.seconds: dict[str, float] = {}
        self._tests: dict[tuple[str, str], set[str]] = defaultdict(set)
        """(source file, name of a line) -> tests."""
        self._functions: dict[tuple[str, str], set[str]] = defaultdict(set)
        self._modules: dict[str, set[str]] = defaultdict(set)
        for path in sorted(folder.glob("*.json")):
            self._read(json.loads(path.read_bytes()))

    def _read(self, recorded: dict[str, dict[str, list[int]]]) -> None:
        self.seconds.update(recorded["seconds"])  # type: ignore[arg-type]
        lines: Sequence[Sequence[str]] = recorded["lines"]  # type: ignore[assignment]
        for test, seen in recorded["seen"].items():
            for number in seen:
                path, name = lines[number]
                self._tests[path, name].add(test)
                function = name.partition(": ")[0]
                self._functions[path, function].add(test)
                if function:
                    self._modules[path].add(test)

    def tests_of(self, mutant: Mutant, source: bytes, near: Collection[str]) -> set[str]:
        """Return the tests that execute a mutant; where that is not known, those of the module or of the area.

        What is executed on import belongs to every test of the module.
        """
        names = names_of(source.decode())[mutant.lines[0] - 1 : mutant.lines[1]]
        found = set().union(*(self._tests.get((mutant.path, name), ()) for name in names))
        if mutant.function:
            found = found or self._functions.get((mutant.path, mutant.function), set())
        else:
            found |= self._modules[mutant.path]
        return found or {test for test in self.seconds if is_near(test, near)}

    def batches(self, tests: Iterable[str], near: Collection[str], patience: float) -> list[Batch]:
        """Return tests in the order of trying, a few first; at most about `patience` recorded seconds in all."""
        by_file: dict[str, list[str]] = defaultdict(list)
        for test in sorted(tests, key=lambda one: (self.seconds[one], one)):
            by_file[test.partition("::")[0]].append(test)
        order = sorted(by_file, key=lambda file: (not is_near(file, near), self._mean(by_file[file]), file))
        first: list[str] = []
        rest: list[str] = []
        for place, file in enumerate(order):
            for test in by_file[file]:
                spent = sum(self.seconds[one] for one in first)
                early = place < FIRST_FILES and spent + self.seconds[test] <= FIRST_SECONDS
                (first if early else rest).append(test)
        return [batch for batch in (self._batch(first, patience), self._batch(rest, patience)) if batch.tests]

    def _mean(self, tests: Sequence[str]) -> float:
        return sum(self.seconds[test] for test in tests) / len(tests)

    def _batch(self, tests: Sequence[str], patience: float) -> Batch:
        chosen: list[str] = []
        spent = 0.0
        for test in tests:
            if not chosen or spent + self.seconds[test] <= patience:
                chosen.append(test)
                spent += self.seconds[test]
        return Batch(tuple(chosen), spent)


def is_near(test: str, folders: Collection[str]) -> bool:
    """Tell whether a test is in one of some folders."""
    return any(test.startswith(f"{folder}/") for folder in folders)
