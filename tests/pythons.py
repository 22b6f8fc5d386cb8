"""`make pythons`: the tests on each supported version of Python, and the table of their counts.

    python -m tests.pythons                                  # each version, each tier; some hours
    python -m tests.pythons --versions 3.13 --tiers test     # some of them; the others keep their counts
    python -m tests.pythons --log ci.log                     # from what `.ci/run` printed, without running anything
    python -m tests.pythons --log 3.14.log again.log --versions 3.14 --tiers test

Each cell is a `make test-python` or the same for another tier. If tests fail, they are repeated once alone, because a
test with a process in it can fail beside other work on the machine: those that pass then are counted apart. The counts
are those of pytest's closing lines. They are kept in `tests/pythons.json` and written as a table into
`orchestrator/README.md`. A version that is not on this machine and cannot be had is a cell with the reason.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

ROOT = Path(__file__).resolve().parents[1]
COUNTS = Path(__file__).with_suffix(".json")
PAGE = ROOT / "orchestrator" / "README.md"
VERSIONS = ("3.11", "3.12", "3.13", "3.14", "3.15")
TIERS: Mapping[str, Sequence[str]] = {
    "test": (".ci/test-python",),
    "campaign": ("env", "TARGET=campaign", ".ci/test-python"),
    "lowest versions": ("env", "TARGET=test-lowest", ".ci/test-python"),
}
"""Name of a column -> the command that runs it, without the version."""
ONLY = {"lowest versions": ("3.11",)}
"""Columns for some versions: the lowest versions of dependencies have no wheels for later versions of Python."""

Cell: TypeAlias = tuple[str, str]
"""Version and tier."""
Counts: TypeAlias = dict[str, dict[str, str]]
"""Version -> tier -> counts in words, or the reason why there are none."""

_CLOSING = re.compile(r"^=* ?((?:\d+ \w+,? ?)+) in [\d.]+s(?: \([\d:]+\))? ?=*$", re.MULTILINE)
_SECTION = re.compile(r"^== make (\w+), Python (\d+\.\d+)[\d.]* .*$", re.MULTILINE)
"""What `.ci/run` prints before each tier."""
_KINDS = ("passed", "passed alone", "failed", "errors", "error", "skipped", "xfailed")
_RED = ("failed", "errors", "error")
_BLOCK = re.compile(r"(<!-- pythons -->\n).*?(<!-- /pythons -->)", re.DOTALL)


def main() -> None:
    """Run the chosen cells or read them from logs, and write counts and table. The exit code is 1 if a test failed."""
    parser = argparse.ArgumentParser(description="The tests on each supported version of Python.")
    parser.add_argument("--versions", nargs="+", default=VERSIONS, choices=VERSIONS)
    parser.add_argument("--tiers", nargs="+", default=list(TIERS), choices=TIERS)
    parser.add_argument(
        "--log", nargs="+", type=Path, help="that of CI, or of one cell, and of its failed tests repeated"
    )
    chosen = parser.parse_args()
    counts: Counts = json.loads(COUNTS.read_text(encoding="utf-8")) if COUNTS.exists() else {}
    cells = [
        (version, tier)
        for version in chosen.versions
        for tier in chosen.tiers
        if version in ONLY.get(tier, VERSIONS)
    ]
    for version, tier, cell in _logged(chosen.log, cells) if chosen.log else _run(cells):
        counts.setdefault(version, {})[tier] = cell
        COUNTS.write_text(json.dumps(counts, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), counts), encoding="utf-8")
    print(table(counts))
    sys.exit(any(kind in cell for row in counts.values() for cell in row.values() for kind in _RED))


def _run(cells: Sequence[Cell]) -> Iterator[tuple[str, str, str]]:
    for version, tier in cells:
        print(f"== Python {version}, {tier}", flush=True)
        said = [_output([*TIERS[tier], version, "ARGS=-q"])]
        if any(kind in counts_of(*said) for kind in _RED):
            said.append(_output([*TIERS[tier], version, "ARGS=-q -n 0 --last-failed"]))
        yield version, tier, counts_of(*said)


def _output(command: Sequence[str]) -> str:
    """Run a command and return its output, which is shown as it comes."""
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as running:
        said = ""
        for line in running.stdout or ():
            print(line, end="", flush=True)
            said += line
    return said


def _logged(files: Sequence[Path], cells: Sequence[Cell]) -> Iterator[tuple[str, str, str]]:
    """Yield the cells that logs have: each section of a log of CI, or the one chosen cell."""
    texts = [file.read_text(encoding="utf-8") for file in files]
    sections = list(sections_of(texts[0]))
    if not sections and len(cells) != 1:
        sys.exit("pythons: the log has no sections of .ci/run; name its cell: --versions 3.11 --tiers test")
    yield from sections or [(*cells[0], counts_of(*texts))]


def sections_of(log: str) -> Iterator[tuple[str, str, str]]:
    """Yield version, tier and counts of each tier in what `.ci/run` printed."""
    _, *parts = _SECTION.split(log)
    for target, version, said in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
        if target in TIERS:
            yield version, target, counts_of(said)


def counts_of(said: str, again: str = "") -> str:
    """Return the counts of pytest's closing line, or the last line if there is none.

    Args:
        said: The output of a session.
        again: The output of another one with the tests that failed, each alone.
    """
    found = _numbers(said)
    if not found:
        lines = said.strip().splitlines()
        return lines[-1].removeprefix("test-python: ") if lines else "no output"
    if repeated := _numbers(again):
        found = {kind: count for kind, count in found.items() if kind not in _RED}
        found |= {kind: count for kind, count in repeated.items() if kind in _RED}
        found["passed alone"] = repeated.get("passed", 0)
    return ", ".join(f"{found[kind]:,} {kind}" for kind in _KINDS if found.get(kind))


def _numbers(said: str) -> dict[str, int]:
    closing = _CLOSING.findall(said)
    parts = [part.split() for part in closing[-1].split(",")] if closing else []
    return {kind: int(count) for count, kind in parts}


def table(counts: Counts) -> str:
    """Return the table as Markdown."""
    lines = [f"| Python | {' | '.join(TIERS)} |", f"|---{'|---' * len(TIERS)}|"]
    for version in VERSIONS:
        row = counts.get(version, {})
        cells = [row.get(tier, "not run" if version in ONLY.get(tier, VERSIONS) else "–") for tier in TIERS]
        lines.append(f"| {version} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def with_table(page: str, counts: Counts) -> str:
    """Return the page with the table of these counts in its place; without counts the place is empty."""
    return _BLOCK.sub(lambda found: f"{found[1]}{table(counts) if counts else ''}{found[2]}", page)


if __name__ == "__main__":
    main()
