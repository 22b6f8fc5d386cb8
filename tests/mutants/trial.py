"""Runs the tests that concern a mutant in a copy of the tree, one copy for each worker, until the first failure."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.mutation import Mutant
from tests.mutants.selection import Batch, file_of

LEAST_SECONDS, TIMES = 60.0, 8.0
"""A mutant hangs if its tests take longer than both: this many seconds, and this multiple of the recorded time."""
LEFT_OUT = (".git", ".venv", ".venv-*", ".mutants", ".*_cache", ".hypothesis")
"""Bytecode is copied: the first trial of a copy would compile all that it imports."""
FAILURE = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", re.MULTILINE)
PASSED, NONE_COLLECTED, NOT_FOUND = 0, 5, 4
"""Exit codes of pytest."""


@dataclass(frozen=True)
class Verdict:
    """The result of the trial of one mutant."""

    mutant: Mutant
    detected: bool
    by: str = ""
    """The test that failed first, or another sign, such as a hang."""
    tests: int = 0
    """Number of tests that were selected."""


class Workplace:
    """A copy of the tree, in which one mutant at a time is tried."""

    def __init__(self, root: Path, folder: Path, roots: Sequence[str]) -> None:
        self._root = folder
        self._environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(str(folder / name) for name in roots),
        }
        shutil.copytree(root, folder, ignore=shutil.ignore_patterns(*LEFT_OUT), symlinks=True)

    def try_mutant(self, mutant: Mutant, batches: Sequence[Batch], unsound: Sequence[str] = ()) -> Verdict:
        """Run the tests of a mutant, except the tests and files that are `unsound`: they fail without it."""
        given = 0
        with self._changed(mutant):
            for batch in batches:
                tests = [test for test in batch.tests if test not in unsound and file_of(test) not in unsound]
                given += len(tests)
                by = self.failure(tests, max(LEAST_SECONDS, TIMES * batch.seconds)) if tests else ""
                if by:
                    return Verdict(mutant, detected=True, by=by, tests=given)
        return Verdict(mutant, detected=False, tests=given)

    def failures(self, tests: Sequence[str]) -> list[str]:
        """Return which of some tests fail in the copy as it is."""
        done = self._pytest(tests, None) if tests else None
        return [] if done is None else FAILURE.findall(done.stdout)

    def failure(self, tests: Sequence[str], seconds: float) -> str:
        """Return the first test that fails, or another reason why the tests did not pass; empty if all pass."""
        done = self._pytest(tests, seconds, "-x")
        if (
            done is not None and done.returncode == NOT_FOUND
        ):  # tests of these files have changed since the record
            files = dict.fromkeys(test.partition("::")[0] for test in tests)
            done = self._pytest([file for file in files if (self._root / file).exists()], seconds, "-x")
        if done is None:
            return "(hangs)"
        if done.returncode in {PASSED, NONE_COLLECTED}:
            return ""
        failed = FAILURE.findall(done.stdout)
        return (
            failed[0]
            if failed
            else f"(pytest ended with {done.returncode}) {(done.stdout + done.stderr)[-400:]}"
        )

    def _pytest(
        self, tests: Sequence[str], seconds: float | None, *options: str
    ) -> subprocess.CompletedProcess[str] | None:
        """Run pytest in its own process group. Return None if it takes longer than `seconds`."""
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-rfE",
            "--no-header",
            "--tb=no",
            "-p",
            "no:cacheprovider",
        ]
        with subprocess.Popen(
            [*command, *options, *tests],
            cwd=self._root,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                said, complained = process.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                return None
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        return subprocess.CompletedProcess(command, process.returncode, said, complained)

    @contextlib.contextmanager
    def _changed(self, mutant: Mutant) -> Iterator[None]:
        path = self._root / mutant.path
        source = path.read_bytes()
        path.write_bytes(mutant.applied(source))
        _forget_compiled(path)
        try:
            yield
        finally:
            path.write_bytes(source)
            _forget_compiled(path)


def _forget_compiled(path: Path) -> None:
    """Remove the bytecode of a file: Python would use it for another text of equal length and time."""
    Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)
