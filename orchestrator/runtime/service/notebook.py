"""Agents and results in notebooks: `_repr_mimebundle_` of both, and the observers that fit there."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Protocol

from orchestrator.kernel.graph import Graph
from orchestrator.kernel.outcome import Outcome
from orchestrator.kernel.record import Transition
from orchestrator.llm.message import Usage


class EndedRun(Protocol):
    """What the results of all machines have."""

    @property
    def run_id(self) -> str: ...
    @property
    def outcome(self) -> Outcome: ...
    @property
    def reason(self) -> str: ...
    @property
    def transitions(self) -> tuple[Transition, ...]: ...
    @property
    def error(self) -> Exception | None: ...


def in_notebook() -> bool:
    """Return whether this is a notebook or another shell of IPython."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return shell is not None and shell() is not None


def result_bundle(result: EndedRun, *graphs: Graph) -> dict[str, str]:
    """Return a result as text and as HTML, with its path on the first of the graphs that has all of its edges."""
    from orchestrator.drawing.notebook import bundle
    from orchestrator.runtime.runs.graph_marks import path_marks
    from orchestrator.telemetry.history import History

    end = (
        result.outcome.value if result.reason in {"", "none"} else f"{result.outcome.value} ({result.reason})"
    )
    facts = {
        "run": result.run_id,
        "outcome": end,
        "output": getattr(result, "output", None),
        "error": result.error and f"{type(result.error).__name__}: {result.error}",
        "usage": _usage_text(getattr(result, "usage", None)),
    }
    path = result.transitions
    graph = next((one for one in graphs if _has(one, path)), None)
    current = path[-1].dest if path else None
    marks = path_marks(History(limit=0, facts=path), current=current, status=result.outcome.value)
    return bundle(facts, graph, marks)


def _usage_text(usage: Usage | None) -> str:
    if usage is None:
        return ""
    cost = "" if usage.cost is None else f", cost {usage.cost:g}"
    cost += "" if usage.cost_max_micros is None else f" to {usage.cost_max:g}"
    return f"{usage.input_tokens:,} tokens in, {usage.output_tokens:,} out{cost}"


def agent_bundle(name: str, model: object, tools: Iterable[str], graph: Graph) -> dict[str, str]:
    """Return an agent as text and as HTML, with its graph."""
    from orchestrator.drawing.notebook import bundle

    return bundle({"agent": name, "model": model, "tools": ", ".join(tools), "graph": graph.name}, graph)


def _has(graph: Graph, path: Iterable[Transition]) -> bool:
    rows = {(source.value, event.value, dest.value) for source, event, dest, _ in graph.rows}
    return all((one.source, one.event, one.dest) in rows for one in path)
