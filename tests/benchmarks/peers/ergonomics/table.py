"""The table of README.md, from the programs and the results: `make accept` writes it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from orchestrator.cli.docs import GUIDES
from tests.benchmarks.peers.ergonomics.measure import Count, count, count_text
from tests.benchmarks.peers.ergonomics.run import LIBRARIES, PROGRAMS, results
from tests.benchmarks.peers.ergonomics.trial import PLACES

_ROWS: tuple[tuple[str, Callable[[Count], int]], ...] = (
    ("lines", lambda one: one.lines),
    ("statements", lambda one: one.statements),
    ("**concepts**", lambda one: one.concepts),
    ("imported names", lambda one: len(one.names)),
    ("attributes and methods", lambda one: len(one.members)),
    ("options", lambda one: len(one.options)),
    ("strings", lambda one: len(one.strings)),
    ("statements that store the state of a run", lambda one: one.storing),
)


def table() -> str:
    """Return the figures of each program and what was observed when it ran."""
    counts = [count(PROGRAMS / f"{one.name}.py") for one in LIBRARIES]
    observed = results()
    rows = [["", *(one.title for one in LIBRARIES)], ["-"] * (len(LIBRARIES) + 1)]
    rows += [[title, *(str(figure(one)) for one in counts)] for title, figure in _ROWS]
    rows += [
        [f"killed: {place}", *(observed[one.name]["killed"][place] for one in LIBRARIES)] for place in PLACES
    ]
    rows.append(["version", *(", ".join(observed[one.name]["versions"].values()) for one in LIBRARIES)])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def concepts() -> str:
    """Return the concepts of each program."""
    lines = []
    for library in LIBRARIES:
        found = count(PROGRAMS / f"{library.name}.py")
        groups = (found.names, found.members, found.options, found.strings)
        listed = "; ".join(", ".join(f"`{one}`" for one in group) for group in groups if group)
        lines.append(f"- {library.title}: {listed}\n")
    return "".join(lines)


ROOT = Path(__file__).resolve().parents[4]
_PROGRAM = re.compile(r"^## ([^\n]+)\n\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def small_programs() -> str:
    """Return the figures of both programs of each page "Coming from …"."""
    rows = [["program", "lines", "lines, ours", "concepts", "concepts, ours"], ["-"] * 5]
    for title, theirs, ours in _pairs():
        figures = (theirs.lines, ours.lines, theirs.concepts, ours.concepts)
        rows.append([title, *map(str, figures)])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _pairs() -> Iterator[tuple[str, Count, Count]]:
    """Yield each program of another library as a link, with its figures and those of our program on its page."""
    for guide in GUIDES:
        if guide.topic.startswith("from-"):
            text = (ROOT / guide.path).read_text(encoding="utf-8")
            counts = {heading: count_text(program) for heading, program in _PROGRAM.findall(text)}
            ours = counts.pop("Here")
            for heading, theirs in counts.items():
                yield f"[{heading}](../../../../{guide.path})", theirs, ours
