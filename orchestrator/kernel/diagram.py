"""A graph as text: mermaid, graphviz, a table, JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from orchestrator.kernel.graph import Graph, guard_name


def mermaid(graph: Graph, current: str | None = None) -> str:
    """Return a mermaid state diagram; `current` is drawn filled."""
    lines = ["stateDiagram-v2", f"    [*] --> {graph.initial.value}"]
    for source, event, dest, edge in graph.rows:
        guard = f" [{guard_name(edge.when)}]" if edge.when else ""
        lines.append(f"    {source.value} --> {dest.value}: {event.value}{guard}")
    lines += [f"    {state} --> [*]" for state in sorted(graph.terminal)]
    if current is not None:
        lines += ["    classDef current fill:#2a9d4a,color:#fff", f"    class {current} current"]
    return "\n".join(lines) + "\n"


def dot(graph: Graph, current: str | None = None) -> str:
    """Return a graphviz digraph; terminal states have a double border, `current` is filled."""
    lines = [f'digraph "{graph.name}" {{', "    rankdir=LR;", '    node [shape=box, style="rounded"];']
    for state in graph.states:
        looks = ["peripheries=2"] if state in graph.terminal else []
        looks += ['style="rounded,filled"', 'fillcolor="#9be3b0"'] if state.value == current else []
        suffix = f" [{', '.join(looks)}]" if looks else ""
        lines.append(f'    "{state.value}"{suffix};')
    for source, event, dest, edge in graph.rows:
        guard = f"\\n[{guard_name(edge.when)}]" if edge.when else ""
        lines.append(f'    "{source.value}" -> "{dest.value}" [label="{event.value}{guard}"];')
    return "\n".join([*lines, "}"]) + "\n"


def table(graph: Graph, current: str | None = None) -> str:
    """Return the rows as aligned text: source, event, destination, guard; `current` is marked with a star."""

    def marked(state: str) -> str:
        return f"* {state}" if state == current else state

    head = ("from", "event", "to", "only when")
    rows = [
        (
            marked(source.value),
            event.value,
            marked(dest.value),
            guard_name(edge.when) or "",
        )
        for source, event, dest, edge in graph.rows
    ]
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(4)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in [head, tuple("-" * width for width in widths), *rows]
    ]
    return "\n".join(lines) + "\n"


def as_json(graph: Graph, current: str | None = None) -> str:
    """Return the whole table and its fingerprint as JSON."""
    described = {**graph.describe(), "fingerprint": graph.fingerprint}
    if current is not None:
        described["current"] = current
    return json.dumps(described, indent=2) + "\n"


FORMATS: Mapping[str, Callable[[Graph, str | None], str]] = {
    "mermaid": mermaid,
    "dot": dot,
    "table": table,
    "json": as_json,
}
"""Format name -> renderer, as offered by `orchestrator graph --format`."""

DRAWINGS: dict[str, Callable[[Graph], str]] = {}
"""MIME type -> renderer for notebooks. The kernel draws nothing: `orchestrator.drawing.notebook` adds SVG."""


def mimebundle(graph: Graph) -> dict[str, str]:
    """Return the representations of a graph in a notebook: its table as text, and its drawings."""
    return {"text/plain": table(graph), **{mime: draw(graph) for mime, draw in DRAWINGS.items()}}
