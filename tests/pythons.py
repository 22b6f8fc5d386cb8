"""`make pythons`: the tests on each supported version of Python, and the table of their counts.

    python -m tests.pythons                                  # each version, each tier; about an hour
    python -m tests.pythons --versions 3.13 --tiers test     # some of them; the others keep their counts

Each cell is a `make test-python` or the same for another tier. The counts are those of pytest's closing line. They are
kept in `tests/pythons.json` and written as a table into `orchestrator/README.md`. A version that is not on this machine
and cannot be had is a cell with the reason.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
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

Counts: TypeAlias = dict[str, dict[str, str]]
"""Version -> tier -> counts in words, or the reason why there are none."""

_CLOSING = re.compile(r"^=* ?((?:\d+ \w+,? ?)+) in [\d.]+s(?: \([\d:]+\))? ?=*$", re.MULTILINE)
_KINDS = ("passed", "failed", "errors", "error", "skipped", "xfailed")
_BLOCK = re.compile(r"(<!-- pythons -->\n).*?(<!-- /pythons -->)", re.DOTALL)


def main() -> None:
    """Run the chosen cells, and write counts and table. The exit code is 1 if a test failed."""
    parser = argparse.ArgumentParser(description="The tests on each supported version of Python.")
    parser.add_argument("--versions", nargs="+", default=VERSIONS, choices=VERSIONS)
    parser.add_argument("--tiers", nargs="+", default=list(TIERS), choices=TIERS)
    chosen = parser.parse_args()
    counts: Counts = json.loads(COUNTS.read_text(encoding="utf-8")) if COUNTS.exists() else {}
    for version in chosen.versions:
        for tier in chosen.tiers:
            if version in ONLY.get(tier, VERSIONS):
                counts.setdefault(version, {})[tier] = _cell(version, tier)
                COUNTS.write_text(json.dumps(counts, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), counts), encoding="utf-8")
    print(table(counts))
    sys.exit(any("failed" in cell or "error" in cell for row in counts.values() for cell in row.values()))


def _cell(version: str, tier: str) -> str:
    """Run one tier on one version; its output is shown as it comes."""
    print(f"== Python {version}, {tier}", flush=True)
    command = [*TIERS[tier], version, "ARGS=-q"]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as running:
        said = ""
        for line in running.stdout or ():
            print(line, end="", flush=True)
            said += line
    return counts_of(said)


def counts_of(said: str) -> str:
    """Return the counts of pytest's closing line, or the last line if there is none."""
    closing = _CLOSING.findall(said)
    if not closing:
        lines = said.strip().splitlines()
        return lines[-1].removeprefix("test-python: ") if lines else "no output"
    parts = [part.split() for part in closing[-1].split(",")]
    return ", ".join(f"{int(count):,} {kind}" for count, kind in parts if kind in _KINDS)


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
