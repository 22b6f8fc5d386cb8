"""Context managers of observers around a model request and the tools of a turn; None if no observer wants one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from orchestrator.kernel.call import Around, Call
from orchestrator.kernel.run import Run
from orchestrator.tools.spec import ToolSpec


def model_scope(run: Run[Any, Any], model: str) -> AbstractContextManager[object] | None:
    """Return the context manager of a request that starts now."""
    around = _around(run)
    if around is None:
        return None
    iteration, at = run.ctx.iteration + 1, run.deps.clock.time()
    return around(Call(run.graph.name, run.run_id, "model", model, iteration, 0, at))


def tool_scope(
    run: Run[Any, Any], ahead: int = 0
) -> Callable[[ToolSpec, int], AbstractContextManager[object]] | None:
    """Return the function that makes the context manager of a tool at a position.

    `ahead` is 1 if the facts about these tools have the iteration after the present one.
    """
    around = _around(run)
    if around is None:
        return None

    def scope(spec: ToolSpec, position: int) -> AbstractContextManager[object]:
        iteration, at = run.ctx.iteration + ahead, run.deps.clock.time()
        return around(Call(run.graph.name, run.run_id, "tool", spec.name, iteration, position, at))

    return scope


def _around(run: Run[Any, Any]) -> Around | None:
    services = run.control.services
    return None if services is None else services.around
