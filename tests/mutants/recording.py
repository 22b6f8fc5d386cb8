"""A pytest plugin that records which lines each test executes, and how long the test takes.

The record is a folder with one file for each test file, so that a changed test file can be recorded again alone.
Lines are stored by name (`source.py`): a record stays useful while lines move.
"""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import coverage
import pytest

from tests.mutants.source import line_names

FOLDER = "MUTANTS_LINES"
ROOTS = "MUTANTS_ROOTS"
"""Environment: the folder of the record, and the source folders, separated by `os.pathsep`."""
_STARTED_WITH = dict(os.environ)
"""Read on import: the conftest of the recorded tests replaces the environment, before `pytest_configure`."""


class Recorder:
    """Records the executed lines of each test."""

    def __init__(self, folder: Path, root: Path, sources: list[str]) -> None:
        self._folder = folder
        self._root = root
        self._coverage = coverage.Coverage(
            data_file=None, config_file=False, source=[str(root / name) for name in sources]
        )
        # The default since Python 3.14 records no contexts.
        self._coverage.set_option("run:core", "ctrace")
        self._seconds: dict[str, float] = {}

    def pytest_sessionstart(self) -> None:
        self._coverage.start()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._coverage.switch_context(item.nodeid)
        started = time.perf_counter()
        try:
            return (yield)
        finally:
            self._seconds[item.nodeid] = time.perf_counter() - started
            self._coverage.switch_context("")

    def pytest_sessionfinish(self) -> None:
        self._coverage.stop()
        files: dict[str, dict[str, set[tuple[str, str]]]] = defaultdict(dict)
        for test, lines in self._lines().items():
            files[test.partition("::")[0]][test] = lines
        self._folder.mkdir(parents=True, exist_ok=True)
        for name, tests in files.items():
            every = sorted(set().union(*tests.values()))
            number = {line: place for place, line in enumerate(every)}
            seen = {test: sorted(number[line] for line in lines) for test, lines in tests.items()}
            seconds = {test: round(self._seconds[test], 4) for test in tests}
            body = {"lines": every, "seconds": seconds, "seen": seen}
            (self._folder / f"{name.replace('/', '.')}.json").write_text(json.dumps(body))

    def _lines(self) -> dict[str, set[tuple[str, str]]]:
        """Return test -> (source file, name of a line) for each line that it executed.

        A test may compile a longer text under the name of a file, or a text under the name of none. What no file has is
        left out.
        """
        data = self._coverage.get_data()
        found: dict[str, set[tuple[str, str]]] = {test: set() for test in self._seconds}
        for measured in data.measured_files():
            path = Path(measured)
            if not path.is_file():
                continue
            names = line_names(path)
            short = path.relative_to(self._root).as_posix()
            executed = data.contexts_by_lineno(measured)
            for line, name in enumerate(names, 1):
                for test in filter(None, executed.get(line, ())):
                    found[test].add((short, name))
        return found


def pytest_configure(config: pytest.Config) -> None:
    if folder := _STARTED_WITH.get(FOLDER):
        recorder = Recorder(Path(folder), config.rootpath, _STARTED_WITH[ROOTS].split(os.pathsep))
        config.pluginmanager.register(recorder, "line recorder")
