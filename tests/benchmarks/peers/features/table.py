"""The comparison in README.md and its evidence in the guide, from the results: `make accept` writes both."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from tests.benchmarks.environments import OURS as DISTRIBUTION
from tests.benchmarks.environments import PINS
from tests.benchmarks.peers.features.catalogue import FEATURES, LIBRARIES, TEMPORAL
from tests.benchmarks.peers.roster import OURS

RESULTS = Path(__file__).parents[2] / "results"


class Figure(NamedTuple):
    """One measured row: a figure of a workload of `peers.json`."""

    title: str
    workload: str
    name: str
    relative: bool = False
    """Whether it is shown as a ratio to ours, taken round by round: times of a machine that does other work too."""


FIGURES = (
    Figure("µs of CPU a turn, 50 turns", "50 turns, 1 tool", "cpu_us_per_turn"),
    Figure("the same, 1,000 turns", "1,000 turns, 1 tool", "cpu_us_per_turn"),
    Figure("KiB for a waiting run", "10,000 runs wait for a 1 s model", "kib_per_run"),
    Figure("bytes stored a turn", "journalled, 100 runs of 30 turns", "bytes_per_turn"),
    Figure("durable turns/s, ours = 1", "journalled, 100 runs of 30 turns", "turns_per_s", relative=True),
    Figure("time to resume 1,000 turns", "resume of 1,000 turns", "resume_ms", relative=True),
    Figure("time to import", "import and size", "import_ms", relative=True),
    Figure("MB without extras", "import and size", "installed_mb"),
)


def comparison() -> str:
    """Return the table of README.md: features, then figures."""
    heads = ["", *LIBRARIES.values(), TEMPORAL]
    versions = {
        one["name"]: next(iter(one["versions"].values()), "-") for one in _read("peers")["contestants"]
    }
    features = [
        [feature.title, *(row["cells"][name]["value"] for name in LIBRARIES), feature.documented.value]
        for feature, row in zip(FEATURES, _read("features")["features"], strict=True)
    ]
    figures = [[one.title, *(_figure(one, name) for name in LIBRARIES), "-"] for one in FIGURES]
    return _table(heads, [["version", *map(versions.__getitem__, LIBRARIES), "-"], *features, *figures])


def evidence() -> str:
    """Return the observations behind each cell, a list for the guide."""
    lines = []
    for feature, row in zip(FEATURES, _read("features")["features"], strict=True):
        lines.append(f"- **{feature.title}**")
        for name, title in LIBRARIES.items():
            cell = row["cells"][name]
            lines.append(f"  - {title}: {cell['value']} ({cell['observed']})")
        lines.append(f"  - {TEMPORAL}: {feature.documented.value} ({feature.documented.observed})")
    lines.append(f"- **{FIGURES[-1].title}**, of an environment with")
    lines += [f"  - {title}: {_packages(name)}" for name, title in LIBRARIES.items()]
    return "\n".join(lines) + "\n"


def _packages(library: str) -> str:
    """Return the packages that were installed for a library, as the head of its pins names them."""
    if library == OURS:
        return DISTRIBUTION
    [found] = re.findall("install (.+) into an empty", (PINS / f"{library}.txt").read_text(encoding="utf-8"))
    return " and ".join(found.split())


@cache
def _read(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def _figure(figure: Figure, library: str) -> str:
    if figure.relative and library == OURS:
        return "1"
    workloads = {one["name"]: one["contestants"] for one in _read("peers")["workloads"]}
    name = f"{figure.name}_to_{OURS}" if figure.relative else figure.name
    found = workloads[figure.workload].get(library, {}).get(name)
    return "-" if found is None else _short(found[0])


def _short(value: float) -> str:
    """Return two digits or whole numbers: more would be noise."""
    if value >= 10:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    def line(cells: Iterable[str]) -> str:
        return f"| {' | '.join(cells)} |\n"

    return "".join(_lines(line(heads), f"|{'-|' * len(heads)}\n", map(line, rows)))


def _lines(head: str, rule: str, rows: Iterable[str]) -> Iterator[str]:
    yield head
    yield rule
    yield from rows
