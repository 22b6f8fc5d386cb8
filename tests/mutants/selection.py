"""Selects the tests of a mutant: those that execute its line, by the record (`recording.py`), nearest first.

Near is a test whose file is named like the changed module or its folders, and then one that executes few other lines
in a short time. Each test function gives one case before any gives a second one: its cases mostly fail together.
"""

from __future__ import annotations

import ast
import itertools
import json
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.mutation import Mutant
from tests.mutants.source import names_of

FIRST_FILES, FIRST_SECONDS = 6, 10.0
"""Number of test files, and recorded seconds, of the first batch. It detects most mutants."""
WORD = re.compile(r"[a-z]{2,}?(?=s?(?:[^a-z]|$))")
"""A word of a path, without the s of a plural."""

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
        self.lines: dict[str, int] = {}
        """Test -> number of lines that it executes."""
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
            self.lines[test] = len(seen)
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
        folders `near`. A line that runs on import has the tests that use its name or contain its code, import its
        module or are named like it, then all tests of the module.
        """
        header = source.decode().splitlines()[mutant.lines[0] - 1]
        if mutant.function:
            named: set[str] = set()
            tests = self._executing(mutant, source)
        else:
            named = self._using(header) | self._importing(mutant.path) | self._about(mutant.path, near)
            if mutant.kind == "code":
                named |= self._with_text(rf"\b{re.escape(ast.literal_eval(mutant.before))}\b")
            tests = named | self._modules[mutant.path]
        tests = tests or {test for test in self.seconds if is_near(test, near)}
        return self._in_order(tests, named, mutant.path, patience)

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
        word = rf"\b{assigned[1]}\b"
        lines = (tests for (_, name), tests in self._tests.items() if re.search(word, name))
        return self._with_text(word).union(*lines)

    def _importing(self, path: str) -> set[str]:
        """Return the tests of the files that import a module, by its name or with all modules of a package."""
        name = path.removeprefix("callbacks/").removeprefix("guards/").removesuffix(".py").replace("/", ".")
        return self._with_text(rf"\b{re.escape(name)} import\b|\bwalk_packages\(")

    def _with_text(self, pattern: str) -> set[str]:
        """Return the tests of the files in which a pattern occurs."""
        files = {file_of(test) for test in self.seconds}
        found = {file for file in files if re.search(pattern, self._text(file))}
        return {test for test in self.seconds if file_of(test) in found}

    def _about(self, path: str, near: Collection[str]) -> set[str]:
        """Return the tests of the folders `near` whose file is named like a module."""
        module = _words(Path(path).stem)
        return {test for test in self.seconds if is_near(test, near) and module & _words(file_of(test))}

    def _text(self, file: str) -> str:
        path = self._root / file
        return path.read_text() if path.exists() else ""

    def _in_order(
        self, tests: Collection[str], named: Collection[str], path: str, patience: float
    ) -> list[Batch]:
        known = {file_of(test) for test in named}
        module, folders = _words(Path(path).stem), _words(path)

        def file_rank(file: str) -> tuple[bool, int, int]:
            words = _words(file)
            return file not in known, -len(words & module), -len(words & folders)

        def rank(test: str) -> tuple[tuple[bool, int, int], float, str]:
            return ranks[file_of(test)], self.lines[test] * self.seconds[test], test

        ranks = {file: file_rank(file) for file in {file_of(test) for test in tests}}
        ordered = _in_turn(sorted(tests, key=rank))
        nearest = list(dict.fromkeys(file_of(test) for test in ordered))[:FIRST_FILES]
        likely = (test for test in ordered if file_of(test) in nearest)
        first = self._batch(likely, min(FIRST_SECONDS, patience))
        tried = set(first.tests)
        rest = self._batch((test for test in ordered if test not in tried), patience)
        return [batch for batch in (first, rest) if batch.tests]

    def _batch(self, tests: Iterable[str], patience: float) -> Batch:
        """Return as many tests as fit into `patience` seconds, file by file: files share what they set up."""
        by_file: dict[str, list[str]] = defaultdict(list)
        spent = 0.0
        for test in tests:
            if not by_file or spent + self.seconds[test] <= patience:
                by_file[file_of(test)].append(test)
                spent += self.seconds[test]
        return Batch(tuple(itertools.chain.from_iterable(by_file.values())), spent)


def _in_turn(tests: Sequence[str]) -> list[str]:
    """Return the first case of each test function, then the second of each, and so on."""
    cases: Counter[str] = Counter()
    turns: dict[str, int] = {}
    for test in tests:
        function = test.partition("[")[0]
        turns[test] = cases[function]
        cases[function] += 1
    return sorted(tests, key=turns.__getitem__)


def _words(path: str) -> set[str]:
    """Return the words of a path, by which the tests of a module are named."""
    return set(WORD.findall(path)) - {"orchestrator", "test", "py"}


def file_of(test: str) -> str:
    """Return the file of a test, from its id."""
    return test.partition("::")[0]


def is_near(test: str, folders: Collection[str]) -> bool:
    """Tell whether a test is in one of some folders."""
    return any(test.startswith(f"{folder}/") for folder in folders)
