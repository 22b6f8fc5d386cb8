"""Every file of the repository that is derived from the code: `make accept` writes it, tests compare it.

A change of a table fails the tests until its files are accepted; the diff of these is reviewed like any other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from orchestrator import Agent, ToolCall, tool
from orchestrator.cli.ops import whole
from orchestrator.cli.shipped import SHIPPED
from orchestrator.kernel.graph import Graph, mermaid
from orchestrator.machines.llm_loop.graph import LLM_LOOP
from orchestrator.machines.team.graph import TEAM
from orchestrator.ops.alert import ALERTS, NAMES
from orchestrator.ops.rule import ALERT_PREFIX, Profile
from orchestrator.telemetry.catalogue import CATALOGUE, PREFIX, table
from orchestrator.testing import ScriptedLLM
from orchestrator.testing.coverage import GraphCoverage
from orchestrator.testing.paths import shortest_paths
from tests import endings_table
from tests.benchmarks import aims, listing
from tests.benchmarks.peers.ergonomics.table import concepts, small_programs
from tests.benchmarks.peers.ergonomics.table import table as ergonomics
from tests.benchmarks.peers.features.table import comparison, evidence
from tests.benchmarks.peers.team.table import table as team
from tests.cli.test_demo import normal, shown_on_a_terminal
from tests.console import tasks
from tests.observability import observability_text
from tests.runtime import progress_sweep

ROOT = Path(__file__).resolve().parents[1]
GRAPHS = "tests/data/golden/graph"
OBSERVABILITY = "tests/data/golden/observability.json"
HINT = "if the difference is wanted, run `make accept`"


class GraphRow(NamedTuple):
    """One row of an accepted table."""

    source: str
    event: str
    dest: str


# ---- tables ----


def graph_text(graph: Graph) -> str:
    """Return what a graph amounts to: its version, its counts, its rows, the shortest way to each state."""
    coverage = GraphCoverage(graph)
    counts = {
        "states": len(graph.states),
        "events": len(graph.events),
        "transitions": coverage.transitions.total,
        "guard answers": coverage.guards.total,
    }
    head = [
        f"# fingerprint {graph.fingerprint[:16]}",
        *(f"# {count} {name}" for name, count in counts.items()),
    ]
    rows = _columns([(s.value, e.value, d.value) for s, e, d, _ in graph.rows])
    ways = [
        f"# {state.value}: {' '.join(hop.event for hop in path) or 'the initial state'}"
        for state, path in shortest_paths(graph).items()
    ]
    return "\n".join([*head, "", *rows, "", "# shortest paths", *ways, ""])


def _columns(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def accepted_graph(name: str) -> str:
    """Return the text that was accepted for a graph."""
    return (ROOT / GRAPHS / f"{name}.txt").read_text(encoding="utf-8")


def accepted_rows(name: str) -> list[GraphRow]:
    """Return the rows that were accepted for a graph."""
    lines = accepted_graph(name).splitlines()
    return [GraphRow(*line.split()) for line in lines if line and not line.startswith("#")]


# ---- guides ----


def guides() -> Iterator[tuple[str, str]]:
    """Yield the guides with the diagram, the traces and the demonstrations of this version."""
    texts: dict[str, str] = {}
    for place in PLACES:
        text = texts.get(place.file) or (ROOT / place.file).read_text(encoding="utf-8")
        texts[place.file] = place.filled(text)
    yield from texts.items()


def trace(said: list[Any]) -> str:
    """Return the path of a run whose model says this, and how it ends."""
    asked = "Summarise the open incidents."
    result = Agent(ScriptedLLM(said), tools=[search], observers=()).run_sync(asked)
    lines = [
        f"{step.seq:3}  {step.source:19}{step.event:21}{step.dest:19}{step.guard or ''}".rstrip()
        for step in result.transitions
    ]
    why = f": {result.verdict.explain()}" if result.verdict is not None else ""
    return "\n".join([*lines, f"{result.outcome} ({result.reason}){why}", ""])


@tool(effect="pure")
async def search(query: str) -> list[str]:
    """Search."""
    return [query]


_CALL = [ToolCall("1", "search", '{"query": "incident"}')]
TRACES: dict[str, list[Any]] = {
    "clean-trace": [_CALL, "Two incidents are open."],
    "stalled-trace": [_CALL] * 9,
}
"""Place in the guides -> what the model says."""


class Place(NamedTuple):
    """A place in a guide, between `<!-- name -->` and `<!-- /name -->`."""

    file: str
    name: str
    language: str
    """Language of the code block; empty where the place has Markdown."""
    make: Callable[[], str]
    differs: Callable[[str, str], bool] = str.__ne__
    """Whether a new text says something else than the old one."""

    def filled(self, text: str) -> str:
        """Return the text of the file with what the code gives now. Raises ValueError where the place is not there."""
        start, end = (f"```{self.language}\n", "```\n") if self.language else ("", "")
        pattern = rf"(<!-- {self.name} -->\n{start})(.*?)({end}<!-- /{self.name} -->)"
        found = re.search(pattern, text, re.DOTALL)
        if found is None:
            raise ValueError(f"{self.file} has no place {self.name}")
        new = self.make()
        if not self.differs(found[2], new):
            return text
        return text[: found.start(2)] + new + text[found.end(2) :]


def alerts_table() -> str:
    """Return a row for each alert: a link to its runbook, its severities, and its summary with labels in italics."""
    rows = ["| alert | severity | meaning |", "|---|---|---|"]
    for name in NAMES:
        found = [alert for alert in ALERTS if alert.full_name == name]
        severity = ", ".join(dict.fromkeys(alert.severity.value for alert in found))
        meaning = re.sub(r"\{\{ \$labels\.(\w+) \}\}", r"*\1*", found[0].summary)
        rows.append(f"| [{name.removeprefix(ALERT_PREFIX)}](runbooks/{name}.md) | {severity} | {meaning} |")
    return "\n".join([*rows, ""])


def demonstration(module: str) -> str:
    """Return what a demonstration shows on a terminal."""
    with TemporaryDirectory() as elsewhere:
        return shown_on_a_terminal(module, Path(elsewhere))


def _says_else(old: str, new: str) -> bool:
    """Return whether more than times and ids is different."""
    return normal(old) != normal(new)


LOOP_GUIDE = "orchestrator/machines/llm_loop/README.md"
ERGONOMICS_GUIDE = "tests/benchmarks/peers/ergonomics/README.md"
TEAM_GUIDE = "tests/benchmarks/peers/team/README.md"
PLACES = (
    Place("README.md", "diagram", "mermaid", partial(mermaid, LLM_LOOP)),
    Place("orchestrator/runtime/team/README.md", "diagram", "mermaid", partial(mermaid, TEAM)),
    Place(progress_sweep.GUIDE, "progress-sweep", "", progress_sweep.table),
    Place("dashboards/README.md", "alerts", "", alerts_table),
    Place(endings_table.GUIDE, "endings", "", endings_table.table),
    Place("README.md", "comparison", "", comparison),
    Place("tests/benchmarks/README.md", "evidence", "", evidence),
    Place("tests/benchmarks/README.md", "aims", "", aims.table),
    Place("orchestrator/console/README.md", "listing", "", listing.table),
    Place("orchestrator/console/README.md", "tasks", "", tasks.table),
    Place(ERGONOMICS_GUIDE, "ergonomics", "", ergonomics),
    Place(ERGONOMICS_GUIDE, "small-programs", "", small_programs),
    Place(ERGONOMICS_GUIDE, "concepts", "", concepts),
    Place(TEAM_GUIDE, "team", "", team),
    *(Place(LOOP_GUIDE, name, "text", partial(trace, said)) for name, said in TRACES.items()),
    Place(
        "orchestrator/runtime/README.md",
        "demo-approval",
        "text",
        partial(demonstration, "orchestrator.examples.approval_demo"),
        _says_else,
    ),
    Place(
        "orchestrator/machines/approval/README.md",
        "demo-plan",
        "text",
        partial(demonstration, "orchestrator.examples.plan_demo"),
        _says_else,
    ),
)


def metric_catalogue() -> str:
    """Return a line for each metric: kind, name and labels."""
    return "".join(f"{row.kind} {PREFIX}{row.name}{{{','.join(row.labels)}}}\n" for row in CATALOGUE)


def derived() -> Iterator[tuple[str, str]]:
    """Yield path and text of every file of this repository that is derived from the code."""
    for name, graph in SHIPPED.items():
        yield f"{GRAPHS}/{name}.txt", graph_text(graph)
    for path, text in whole(list(SHIPPED.values()), Profile()).items():
        yield f"dashboards/{path}", text
    yield OBSERVABILITY, observability_text()
    yield "tests/telemetry/catalogue.txt", metric_catalogue()
    yield "tests/telemetry/metric_table.md", table()
    yield progress_sweep.PICTURE, progress_sweep.picture()
    yield from guides()
