"""Every name that a graph accepts can be drawn: the real Mermaid and Graphviz parse it and show it as itself."""

from __future__ import annotations

import random
from xml.etree import ElementTree as ET

import pytest

from orchestrator.cli.shipped import SHIPPED
from orchestrator.drawing.svg import svg
from orchestrator.errors import GraphError
from orchestrator.kernel.graph import FORMATS, Graph, dot, mermaid
from tests.drawing.named_graph import NAMES, Shown, named_graph, shown


def labels(graph: Graph) -> tuple[Shown, Shown]:
    """Return the labels that Mermaid and Graphviz have to show; Mermaid has one arrow from a state to itself."""
    states = {state.value for state in graph.states}
    arrows: dict[tuple[str, str, str], list[str]] = {}
    for source, event, dest, edge in graph.rows:
        guard = "" if edge.when is None else f" [{getattr(edge.when, '__name__', '')}]"
        arrow = (source.value, dest.value, "" if source == dest else f"{event.value}{guard}")
        arrows.setdefault(arrow, []).append(f"{event.value}{guard}")
    edges = {label for alike in arrows.values() for label in alike}
    return Shown(states, {", ".join(alike) for alike in map(_unique, arrows.values())}), Shown(states, edges)


def _unique(alike: list[str]) -> list[str]:
    """Return the labels of one arrow; alike arrows between two states show the same label."""
    return list(dict.fromkeys(alike))


@pytest.mark.campaign
def test_each_name_is_shown_as_itself() -> None:
    graph = named_graph(NAMES)
    assert shown([graph]) == [labels(graph)]


@pytest.mark.campaign
def test_each_shipped_graph_is_shown() -> None:
    graphs = [*SHIPPED.values()]
    assert shown(graphs) == [labels(graph) for graph in graphs]


@pytest.mark.campaign
def test_random_names_are_shown_as_themselves(seed: int) -> None:
    chance = random.Random(seed)
    printable = [chr(code) for code in range(0x21, 0x2FF) if chr(code).isprintable()]
    words = [
        "state",
        "note",
        "class",
        "style",
        "root",
        "end",
        "as",
        "-->",
        ":::",
        "[*]",
        "%%",
        "&lt;",
        "direction LR",
        "<br/>",
        " ",
    ]

    def name() -> str:
        return "".join(chance.choices([*printable, *words * 5], k=chance.randint(1, 6))).strip()

    graphs = []
    for _ in range(5):
        names = dict.fromkeys(name() for _ in range(20))
        graphs.append(named_graph([one for one in names if accepted(one)]))
    assert shown(graphs) == [labels(graph) for graph in graphs]


def accepted(name: str) -> bool:
    try:
        named_graph(["first", name, "last"])
    except GraphError:
        return False
    return True


def test_a_word_keeps_its_name_as_the_id_and_other_names_have_an_id_of_their_own() -> None:
    graph = named_graph(["work", "note", "q2", "a-b"])
    assert mermaid(graph, "note") == (
        "stateDiagram-v2\n"
        '    state "note" as q2_\n'
        '    state "a#45;b" as q4\n'
        "    [*] --> work\n"
        "    work --> q2_: note [note]\n"
        "    q2_ --> q2: q2 [q2]\n"
        "    q2 --> q4: a#45;b [a#45;b]\n"
        "    q4 --> [*]\n"
        "    classDef current fill:#2a9d4a,color:#fff\n"
        "    class q2_ current\n"
    )
    of_mermaid = (
        *(
            "accTitle",
            "classes",
            "clicked",
            "Default",
            "directions",
            "divider",
            "hideEmpty",
            "hrefs",
            "notes",
            "root",
        ),
        *("scale", "states", "styles"),
    )
    of_javascript = (
        "constructor",
        "hasOwn",
        "isPrototypeOf",
        "propertyIs",
        "toLocale",
        "toString",
        "valueOf",
    )
    names = (*of_mermaid, *of_javascript)
    text = mermaid(named_graph(names))
    assert [name for name in names if f'    state "{name}" as q' not in text] == []


def test_names_are_escaped_for_graphviz() -> None:
    text = dot(named_graph(['q"q', "a\\b", "%x", "<&>"]))
    assert text.startswith('digraph "q\\"q graph" {')
    assert '    "%x" [label="%x"];' in text
    assert '    "q\\"q" -> "a\\\\b" [label="a\\\\b\\n[a\\\\b]"];' in text
    assert '"<&amp;>" [peripheries=2];' in text


def test_every_name_is_in_the_picture_and_in_each_other_form() -> None:
    graph = named_graph(NAMES)
    root = ET.fromstring(svg(graph))  # noqa: S314 - made here
    texts = {
        "".join(part.itertext()).strip() for part in root.iter() if part.tag.endswith(("}text", "}title"))
    }
    words = " ".join(texts)
    assert [name for name in NAMES if name not in words] == []
    for form in ("table", "json"):
        assert FORMATS[form](graph, NAMES[0])
