"""A graph as text: mermaid, graphviz, a table, JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence

from orchestrator.kernel.graph import Graph, guard_name

_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_TAKEN = (
    *(
        "acc",
        "class",
        "click",
        "default",
        "direction",
        "divider",
        "hide",
        "href",
        "note",
        "root",
        "scale",
        "state",
    ),
    *("style", "constructor", "hasown", "isprototype", "propertyis", "tolocale", "tostring", "valueof"),
)
"""Beginnings of words that Mermaid reads as its own, also within a longer word, and those of JavaScript's objects."""
_MARKUP = re.compile(r"(?<= ) |(?<![^\W_])_|_(?![^\W_])|[^\w ,]|d(?=irection )", re.IGNORECASE)
"""Characters of a label that are written as entities. `direction LR` in any place of a line is a statement."""


def mermaid(graph: Graph, current: str | None = None) -> str:
    """Return a mermaid state diagram; `current` is drawn filled.

    A state whose name is no word, or a word of Mermaid's own, has another id there and its name as the label.
    """
    ids = _mermaid_ids([state.value for state in graph.states])
    lines = ["stateDiagram-v2"]
    lines += (f'    state "{_mermaid_text(name)}" as {key}' for name, key in ids.items() if key != name)
    lines.append(f"    [*] --> {ids[graph.initial.value]}")
    arrows: dict[tuple[str, str, int], list[str]] = {}
    for number, (source, event, dest, edge) in enumerate(graph.rows):
        guard = f" [{_mermaid_text(guard_name(edge.when) or '')}]" if edge.when else ""
        # Mermaid shows the last one of several arrows from a state to itself.
        arrow = (ids[source.value], ids[dest.value], -1 if source == dest else number)
        arrows.setdefault(arrow, []).append(f"{_mermaid_text(event.value)}{guard}")
    lines += (f"    {source} --> {dest}: {', '.join(labels)}" for (source, dest, _), labels in arrows.items())
    lines += [f"    {ids[state]} --> [*]" for state in sorted(graph.terminal)]
    if current is not None:
        lines += ["    classDef current fill:#2a9d4a,color:#fff", f"    class {ids[current]} current"]
    return "\n".join(lines) + "\n"


def _mermaid_ids(names: Sequence[str]) -> dict[str, str]:
    """Return name -> the id of its state: the name itself if Mermaid reads it as one."""
    known = {name: name for name in names if _WORD.fullmatch(name) and not name.lower().startswith(_TAKEN)}
    ids: dict[str, str] = {}
    for number, name in enumerate(names, 1):
        key = known.get(name, f"q{number}")
        while name not in known and key in known:
            key += "_"
        ids[name] = key
    return ids


def _mermaid_text(text: str) -> str:
    """Return a label that Mermaid shows as this text: characters of its syntax, HTML and Markdown become entities."""
    return _MARKUP.sub(lambda found: f"#{160 if found[0] == ' ' else ord(found[0])};", text)


def dot(graph: Graph, current: str | None = None) -> str:
    """Return a graphviz digraph; terminal states have a double border, `current` is filled."""
    lines = [
        f"digraph {_dot_text(graph.name)} {{",
        "    rankdir=LR;",
        '    node [shape=box, style="rounded"];',
    ]
    for state in graph.states:
        name = _dot_text(state.value)
        looks = [f"label={name}"] if "%" in name else []  # without it, Graphviz shows a number in its place
        looks += ["peripheries=2"] if state in graph.terminal else []
        looks += ['style="rounded,filled"', 'fillcolor="#9be3b0"'] if state.value == current else []
        suffix = f" [{', '.join(looks)}]" if looks else ""
        lines.append(f"    {name}{suffix};")
    for source, event, dest, edge in graph.rows:
        guard = (f"[{guard_name(edge.when)}]",) if edge.when else ()
        label = _dot_text(event.value, *guard)
        lines.append(f"    {_dot_text(source.value)} -> {_dot_text(dest.value)} [label={label}];")
    return "\n".join([*lines, "}"]) + "\n"


def _dot_text(*lines: str) -> str:
    """Return lines as a quoted string of Graphviz."""
    escaped = (line.replace("\\", "\\\\").replace('"', '\\"').replace("&", "&amp;") for line in lines)
    return '"' + "\\n".join(escaped) + '"'


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
