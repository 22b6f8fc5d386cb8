"""What a contestant costs before its first run: seconds to import what a user's first lines import, bytes on disk."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from tests.benchmarks.contestant import NotMeasured
from tests.benchmarks.peers.roster import Entry
from tests.benchmarks.rounds import Case, Column, Row

_PATIENCE = 120.0


def run_case(case: Case, entries: Sequence[Entry], root: Path, *, install: bool) -> Row:
    """Measure in rounds, as other cases; an empty interpreter's start is taken off in each."""
    columns = {entry.name: Column() for entry in entries}
    interpreters = {}
    for entry in entries:
        try:
            interpreters[entry.name] = _interpreter(entry, root, install=install)
        except NotMeasured as why:
            columns[entry.name].why_not = str(why)
    for number in range(case.rounds + 1):
        for entry in entries if number % 2 == 0 else reversed(entries):
            column = columns[entry.name]
            if not column.why_not:
                # the first compiles what pip did not, and reads the files: nobody's figure
                _round(entry, interpreters[entry.name], Column() if number == 0 else column)
    return Row(case, columns)


def _interpreter(entry: Entry, root: Path, *, install: bool) -> Path:
    if not entry.package:
        raise NotMeasured(entry.unpackaged)
    return entry.footing(root, install=install)()


def _round(entry: Entry, interpreter: Path, column: Column) -> None:
    try:
        empty = _seconds(interpreter, "pass")
        answer = {
            "import_ms": (_seconds(interpreter, entry.imports) - empty) * 1e3,
            "package_ms": (_seconds(interpreter, f"import {entry.package}") - empty) * 1e3,
        }
        column.note(answer | _installed(interpreter))
    except NotMeasured as why:
        column.why_not = str(why)


def _seconds(interpreter: Path, statement: str) -> float:
    """Return the seconds of a process that only carries out a statement. Isolated: our folder is not on its path."""
    started = time.perf_counter()
    done = subprocess.run(
        [interpreter, "-I", "-c", statement],
        capture_output=True,
        text=True,
        check=False,
        timeout=_PATIENCE,
    )
    seconds = time.perf_counter() - started
    if done.returncode:
        raise NotMeasured(
            f"it cannot be imported: {(done.stderr.strip().splitlines() or ['no reason given'])[-1]}"
        )
    return seconds


def _installed(interpreter: Path) -> dict[str, float]:
    """Return what lies in an environment's site-packages, compiled files included: no pip is in it.

    Empty for an environment that holds more than the contestant, such as the one of the tests.
    """
    environment = interpreter.parent.parent
    if not (environment / "pins.txt").exists():
        return {}
    (packages,) = environment.glob("lib/python*/site-packages")
    files = [file for file in packages.rglob("*") if file.is_file()]
    return {
        "installed_mb": sum(file.stat().st_size for file in files) / 1e6,
        "packages": float(sum(1 for _ in packages.glob("*.dist-info"))),
    }
