"""`orchestrator lint`: the problems of a graph, and of the hooks bound to a shipped one."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from orchestrator.cli.exit import Exit
from orchestrator.cli.output import say, say_json
from orchestrator.cli.shipped import HOOKS, SHIPPED, named
from orchestrator.errors import GraphError


def lint_graphs(name: str | None, *, as_json: bool) -> int:
    """Print the problems of one graph, or of all shipped ones; exit code 1 when there are any."""
    found = {each: _problems(each) for each in ([name] if name else SHIPPED)}
    if as_json:
        graphs = [
            {"graph": each, "problems": list(map(_plain, problems))} for each, problems in found.items()
        ]
        say_json({"graphs": graphs})
    else:
        for each, problems in found.items():
            say(f"{each}: {len(problems) or 'no'} problem{'' if len(problems) == 1 else 's'}")
            for problem in problems:
                say(f"  {problem}")
    return Exit.FAILED if any(found.values()) else Exit.COMPLETED


def _problems(name: str) -> list[object]:
    """Return every problem; a strict graph with problems cannot be built, so its error lists them."""
    try:
        problems: list[object] = list(named(name).lint())
        if name in HOOKS:
            HOOKS[name]()
    except GraphError as error:
        return list(error.problems)
    return problems


def _plain(problem: Any) -> dict[str, Any]:
    try:
        return asdict(problem)
    except TypeError:
        return {"message": str(problem)}
