"""Selects the tests of a mutant: those that execute its line, by the record (`recording.py`), nearest first."""

from __future__ import annotations

import itertools
import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.mutation import Mutant
from tests.mutants.source import names_of

FIRST_FILES, FIRST_SECONDS = 6, 10.0
"""Number of test files, and recorded seconds, of the first batch. It detects most mutants."""

ASSIGNED = re.compile(r"\s*(\w+)\s*(?::|=)")
"""A line that gives a name its value: a constant, a field."""


@dataclass(frozen=True)
class Batch:
    """Tests that are run together."""

    tests: tuple[str, ...]
    seconds: float


class Record:
    """The lines that each test executes, read from the folder that the recorder wrote."""

    def __init__(self, folder: Path, root: Path) -> None:
        self.seconds: dict[str, float] = {}
        self._root = root
        self._tests: dict[tuple[str, str], set[str]] = defaultdict(set)
        """(source file, name of a line) -> tests."""
        self._texts: dict[tuple[str, str], set[str]] = defaultdict(set)
        """(source file, text of a line) -> tests: where a function or class was renamed since."""
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
                function, _, text = name.partition(": ")
                self._texts[path, text].add(test)
                self._functions[path, function].add(test)
                if function:
                    self._modules[path].add(test)

    def batches(self, mutant: Mutant, source: bytes, near: Collection[str], patience: float) -> list[Batch]:
        """Return the tests of a mutant in batches, the first one small; each has at most `patience` recorded seconds.

        These are the tests that execute its line. If none is known, they are those of its function, then those of the
        folders `near`. A line that runs on import has the tests that use its name or import its module, then all tests
        of the module.
        """
        header = source.decode().splitlines()[mutant.lines[0] - 1]
        if mutant.function:
            named: set[str] = set()
            tests = self._executing(mutant, source)
        else:
            named = self._using(header) | self._importing(mutant.path)
            tests = named | self._modules[mutant.path]
        tests = tests or {test for test in self.seconds if is_near(test, near)}
        return self._in_order(tests, named, near, patience)

    def _executing(self, mutant: Mutant, source: bytes) -> set[str]:
        names = names_of(source.decode())[mutant.lines[0] - 1 : mutant.lines[1]]
        found = set().union(*(self._tests.get((mutant.path, name), ()) for name in names))
        if not found:
            texts = {name.partition(": ")[2] for name in names}
            found = set().union(*(self._texts.get((mutant.path, text), ()) for text in texts))
        return found or self._functions.get((mutant.path, mutant.function), set())

    def _using(self, header: str) -> set[str]:
        """Return the tests that execute a line with the name that `header` assigns to, or whose file has the name."""
        assigned = ASSIGNED.match(header)
        if assigned is None:
            return set()
        word = re.compile(rf"\b{assigned[1]}\b")
        lines = (tests for (_, name), tests in self._tests.items() if word.search(name))
        files = {file for file in {file_of(test) for test in self.seconds} if word.search(self._text(file))}
        return set().union(*lines, (test for test in self.seconds if file_of(test) in files))

    def _importing(self, path: str) -> set[str]:
        """Return the tests of the files that import a module, by its name or with all modules of a package."""
        name = path.removeprefix("callbacks/").removeprefix("guards/").removesuffix(".py").replace("/", ".")
        word = re.compile(rf"\b{re.escape(name)} import\b|\bwalk_packages\(")
        files = {file for file in {file_of(test) for test in self.seconds} if word.search(self._text(file))}
        return {test for test in self.seconds if file_of(test) in files}

    def _text(self, file: str) -> str:
        path = self._root / file
        return path.read_text() if path.exists() else ""

    def _in_order(
        self, tests: Collection[str], named: Collection[str], near: Collection[str], patience: float
    ) -> list[Batch]:
        by_file: dict[str, list[str]] = defaultdict(list)
        for test in sorted(tests, key=lambda one: (self.seconds[one], one)):
            by_file[file_of(test)].append(test)
        known = {file_of(test) for test in named}

        def rank(file: str) -> tuple[bool, bool, float, str]:
            seconds = [self.seconds[test] for test in by_file[file]]
            return file not in known, not is_near(file, near), sum(seconds) / len(seconds), file

        first: list[str] = []
        rest: list[str] = []
        spent = 0.0
        for place, file in enumerate(sorted(by_file, key=rank)):
            for test in by_file[file]:
                early = place < FIRST_FILES and spent + self.seconds[test] <= FIRST_SECONDS
                (first if early else rest).append(test)
                spent += self.seconds[test] if early else 0.0
        return [batch for batch in (self._batch(first, patience), self._batch(rest, patience)) if batch.tests]

    def _batch(self, tests: Sequence[str], patience: float) -> Batch:
        """Return as many tests as fit into `patience` seconds, taken from each file in turn."""
        chosen: list[str] = []
        spent = 0.0
        for test in _in_turn(tests):
            if not chosen or spent + self.seconds[test] <= patience:
                chosen.append(test)
                spent += self.seconds[test]
        return Batch(tuple(chosen), spent)


def _in_turn(tests: Sequence[str]) -> Iterator[str]:
    by_file: dict[str, list[str]] = defaultdict(list)
    for test in tests:
        by_file[file_of(test)].append(test)
    for several in itertools.zip_longest(*by_file.values()):
        yield from filter(None, several)


def file_of(test: str) -> str:
    """Return the file of a test, from its id."""
    return test.partition("::")[0]


def is_near(test: str, folders: Collection[str]) -> bool:
    """Tell whether a test is in one of some folders."""
    return any(test.startswith(f"{folder}/") for folder in folders)
