"""State machines for any graph: the table, its binding to hooks, runs and their driver.

    from orchestrator.kernel import Driver, Edge, Graph, Run, bind

Names are imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.kernel.driver import Driver as Driver
    from orchestrator.kernel.graph import Edge as Edge
    from orchestrator.kernel.graph import Graph as Graph
    from orchestrator.kernel.graph import bounding as bounding
    from orchestrator.kernel.machine import bind as bind
    from orchestrator.kernel.outcome import Outcome as Outcome
    from orchestrator.kernel.run import Run as Run
    from orchestrator.kernel.typed import ContextInUse as ContextInUse
    from orchestrator.kernel.typed import StateMachine as StateMachine
    from orchestrator.kernel.typed import UnhandledEventError as UnhandledEventError

_HOME = {
    "ContextInUse": "typed",
    "Driver": "driver",
    "Edge": "graph",
    "Graph": "graph",
    "Outcome": "outcome",
    "Run": "run",
    "StateMachine": "typed",
    "UnhandledEventError": "typed",
    "bind": "machine",
    "bounding": "graph",
}
"""Public name -> its module."""

__all__ = sorted(_HOME)  # noqa: PLE0605 - derived, so that it agrees with the names


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
