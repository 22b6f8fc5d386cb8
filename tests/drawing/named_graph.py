"""Graphs with names that are hard to draw, and what the real Mermaid and Graphviz show of them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from orchestrator.kernel.graph import Edge, Graph, dot, enum_of, mermaid
from tests.node import NODE, node_modules

NAMES = (
    *(
        "a-b",
        "note",
        "class",
        "default",
        "style",
        "hello world",
        "x:y",
        "direction LR",
        "click",
        "href x",
        "state_x",
    ),
    *(
        "end",
        "end note",
        "fork",
        "as",
        "graph",
        "notebook",
        "Default",
        "hide empty",
        "root_start",
        "root_end",
        "q1",
    ),
    *(
        "name",
        "value",
        "True",
        "None",
        "1",
        "mro",
        "constructor",
        "toString",
        "__proto",
        "b__",
        "a_b_c",
        "-",
        "🙂",
    ),
    *(
        'q"q',
        "a\\b",
        "a\\nb",
        "a\\Nb",
        "'",
        "{",
        "a|b",
        "[*]",
        "a-->b",
        "x;y",
        "#35;",
        "&amp;",
        "<b>",
        "</svg>",
    ),
    *("%% x", "%%{init}%%", "%y", "*x* _y_ `z`", "1. one", "- two", "+ three", "fa:fa-car", "$$x$$", "a  b"),
    *(
        "http://x.y",
        "é",
        "x\u0301",
        "状態",
        "Ω≈",
        "a, b",
        "~~x~~",
        "![x](y)",
        "=x",
        "@x",
        "a.b.c",
        "(x)",
        "x/y",
    ),
)


def named_graph(names: Sequence[str]) -> Graph:
    """Return a graph with these names for its states, for its events and for its guards."""

    def guard(name: str) -> Any:
        def passes(_: object) -> bool:
            return True

        passes.__name__ = name
        return passes

    states = enum_of("State", {f"S{number}": name for number, name in enumerate(names)})
    events = enum_of("Event", {f"E{number}": name for number, name in enumerate(names[1:])})
    ahead = zip(states, [*states][1:], events, strict=False)
    edges = tuple(Edge(event, (source,), dest, guard(event.value)) for source, dest, event in ahead)
    first, *_, last = states
    return Graph(f"{names[0]} graph", states, events, first, edges, terminal=frozenset((last,)), strict=False)


class Shown(NamedTuple):
    """The labels of states, and those of edges; Mermaid draws an edge from a state to itself in parts."""

    states: set[str]
    edges: set[str]


def shown(graphs: Iterable[Graph]) -> list[tuple[Shown, Shown]]:
    """Return what the real Mermaid and the real Graphviz show of each graph."""
    folder = Path(__file__).with_name("diagrams")
    drawn = [{"mermaid": mermaid(graph, graph.initial), "dot": dot(graph, graph.initial)} for graph in graphs]
    command = [str(NODE), str(folder / "show.mjs"), str(node_modules(folder))]
    done = subprocess.run(
        command, input=json.dumps(drawn), capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, f"{done.stderr[-2_000:]}\n{drawn}"
    return [(_labels(one["mermaid"]), _labels(one["dot"])) for one in json.loads(done.stdout)]


def _labels(found: dict[str, list[Any]]) -> Shown:
    states, edges = ({_text(label) for label in found[kind]} - {""} for kind in ("states", "edges"))
    return Shown(states, edges)


def _text(label: str | list[str]) -> str:
    """Return a label in one line; a space that must stay one of several is a non-breaking one."""
    return (label if isinstance(label, str) else " ".join(label)).replace("\N{NO-BREAK SPACE}", " ")
